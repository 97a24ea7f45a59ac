"""What Prometheus reads."""

from rljob_operator.endpoints import Metrics
from rljob_operator.reconcile.queue import Key
from rljob_operator.times import seconds
from simulator.scraping import samples
from simulator.world import NAMESPACE, World


def read(metrics: Metrics) -> dict[tuple[str, str], float]:
    """By name and the last label's value."""
    return {(x.name, next(reversed(x.labels.values()), "")): x.value for x in samples(metrics)}


async def test_the_metrics_of_a_job_come_from_its_status() -> None:
    world = World(steps=12, save_every=6)
    world.install_gpus(3)
    world.apply(trainer={"device": "gpu", "nodes": 2})
    await world.until(state="Running", step=7)
    world.kill_pod("demo-trainer-1")
    await world.until(state="Succeeded")
    world.feed.deliver()
    found = read(Metrics(world.feed.cache, {("GET", "Pod"): 3}, lambda: 0.5, {"Pod": 7}))
    assert found["rljob_jobs", "Succeeded"] == 1
    assert found["rljob_job_step", "demo"] == 12
    assert found["rljob_job_restarts", "demo"] == 1
    lost = found["rljob_job_lost_steps", "demo"]
    assert lost >= 1, "step 6 was the last that was saved"
    spent = world.status.accounting.gpu_seconds
    kept = sum(spent[phase] for phase in ("generate", "score", "train", "sync"))
    assert found["rljob_job_goodput_ratio", "demo"] == kept / sum(spent.values())
    assert spent["lost"] >= 3 * lost
    assert ("rljob_job_first_step_seconds", "demo") in found
    assert found["rljob_job_state", "Succeeded"] == 1
    assert found["rljob_api_requests_total", "GET"] == 3
    assert found["rljob_watch_events_total", "Pod"] == 7
    assert found["rljob_queue_lag_seconds", ""] == 0.5
    assert found["rljob_operator_leader", ""] == 1


async def test_an_operator_that_waits_for_the_lease_or_for_its_lists_reports_itself_and_no_job() -> None:
    world = World(steps=12, save_every=6)
    world.apply()
    await world.until(state="Running", step=1)
    world.feed.deliver()
    calls, events = {("GET", "Pod"): 3}, {"Pod": 7}
    acts = read(Metrics(world.feed.cache, calls, lambda: 0.5, events, leads=lambda: True))
    waits = read(Metrics(world.feed.cache, calls, lambda: 0.5, events, leads=lambda: False))
    assert any(name.startswith("rljob_job") for name, _ in acts)
    assert waits.keys() == {key for key in acts if not key[0].startswith("rljob_job")}
    assert waits["rljob_operator_leader", ""] == 0
    begins = read(Metrics(world.feed.cache, calls, lambda: 0.5, events, listed=lambda: False))
    assert begins.keys() == waits.keys() and begins["rljob_operator_leader", ""] == 1


async def test_gpu_seconds_go_on_between_two_writes_of_the_status_and_name_the_queue() -> None:
    world = World(steps=12)
    world.install_gpus(3)
    world.apply(trainer={"device": "gpu", "nodes": 2}, scheduling={"backend": "volcano", "queue": "team-a"})
    await world.until(state="Running", step=3)
    world.feed.deliver()
    known = world.status.accounting
    metrics = Metrics(world.feed.cache, {}, lambda: 0.0, {}, lambda: seconds(known.until) + 10)
    found = [x for x in samples(metrics) if x.name in ("rljob_job_gpus", "rljob_job_gpu_seconds")]
    assert {(x.labels["namespace"], x.labels["rljob"], x.labels["queue"]) for x in found} == {
        (NAMESPACE, "demo", "team-a")
    }
    spent = {x.labels["phase"]: x.value for x in found if x.name == "rljob_job_gpu_seconds"}
    assert spent == known.gpu_seconds | {known.phase: known.gpu_seconds[known.phase] + 30}
    assert [x.value for x in found if x.name == "rljob_job_gpus"] == [3]


async def test_alerts_get_the_state_and_how_old_the_newest_checkpoint_is() -> None:
    world = World(steps=12, save_every=6)
    world.apply()
    await world.until(state="Running", step=2)
    world.feed.deliver()
    metrics = Metrics(world.feed.cache, {}, lambda: 0.0, {})
    before = read(metrics)
    assert before["rljob_job_state", "Running"] == 1
    assert before["rljob_job_attempt_timestamp_seconds", "demo"] == seconds(world.status.attempt.started_at) > 0
    assert ("rljob_job_checkpoint_timestamp_seconds", "demo") not in before
    await world.until(state="Running", step=7)
    world.feed.deliver()
    saved = read(metrics)["rljob_job_checkpoint_timestamp_seconds", "demo"]
    assert saved == world.status.checkpoint.latest.time > 0


async def test_reconciles_are_timed() -> None:
    async def work(key: Key) -> float | None:
        return 3.0

    metrics = Metrics(World().feed.cache, {}, lambda: 0.0, {})
    assert await metrics.timed(work)((NAMESPACE, "demo")) == 3.0
    assert read(metrics)["rljob_reconcile_seconds_count", ""] == 1


async def test_a_resume_from_a_step_loses_nothing() -> None:
    world = World(steps=12)
    world.apply()
    await world.until(state="Running", step=7)
    world.request("n1", "resume", from_step=2)
    await world.until(state="Succeeded", attempt=2)
    assert world.status.lost_steps == 0
