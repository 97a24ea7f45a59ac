"""Two jobs at once do not touch each other."""

from e2e.conftest import Lab
from e2e.job import Job
from e2e.test_b_trainer_failure import kill_rank_0


def test_a_failure_in_one_job_is_not_seen_by_the_other(lab: Lab, baseline: Job) -> None:
    first, second = lab.start_replay("twin-a"), lab.start_replay("twin-b")
    kill_rank_0(lab, first, attempt=1, step=10)
    assert first.wait_for_state("Succeeded", timeout=600).restarts.total == 1
    assert second.wait_for_state("Succeeded", timeout=600).restarts.total == 0
    assert lab.losses(first.name) == lab.losses(second.name) == lab.losses(baseline.name)
