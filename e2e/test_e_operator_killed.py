"""The operator dies at random moments and nothing is different."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.test_b_trainer_failure import kill_rank_0

KILLS = 10


def kill_the_operator(lab: Lab) -> None:
    """Force deletion sends SIGKILL at once."""
    for pod in lab.system.list("pod", "app.kubernetes.io/name=rljob-operator"):
        lab.system.kubectl(
            "delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--ignore-not-found"
        )


def test_ten_kills_during_a_trainer_failure_change_nothing(lab: Lab, baseline: Job) -> None:
    moments = random.Random(0)
    job = lab.start_replay("headless")
    with ThreadPoolExecutor() as background:
        killed = background.submit(kill_rank_0, lab, job, attempt=1, step=20)
        for _ in range(KILLS):
            kill_the_operator(lab)
            time.sleep(moments.uniform(1, 8))
        killed.result()
    status = job.wait_for_state("Succeeded", timeout=600)
    assert attempts(status) == (2, 1)
    assert lab.losses(job.name) == lab.losses(baseline.name)
