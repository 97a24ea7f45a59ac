"""The soak of benchmarks/soak.py, for two minutes; an hour is in docs/evidence/cpus.md."""

from benchmarks.soak import FAULTS, soak, subjects


async def test_jobs_of_every_shape_end_where_they_should_after_random_faults() -> None:
    jobs, _ = await soak(seconds=100, faults=16, seed=2)
    assert {job.name: job.verdict(steps=75) for job in jobs} == {job.name: [] for job in jobs}
    assert sum(sum(job.faults.values()) for job in jobs) == 16
    assert len({fault for job in jobs for fault in job.faults}) > len(FAULTS) // 2, "of many kinds"


async def test_a_job_that_is_not_where_it_should_be_is_named() -> None:
    job = next(iter(subjects(steps=20, seed=0)))
    await job.world.until(state="Running", step=3)
    job.world.launcher(0).fail("configuration", "ConfigurationError", job.world.now)
    for _ in range(80):
        await job.second()
    (problem,) = job.verdict(steps=20)
    assert problem.startswith("Failed at step ") and problem.endswith("it broke")
