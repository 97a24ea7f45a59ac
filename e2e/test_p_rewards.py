"""A reward function on the cluster, in pods of its own: a job learns by it while a process and a pod of it are killed."""

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import wait_for
from rljob_api import names

pytestmark = pytest.mark.extra

STEPS, ROLE = 40, names.scorer_role(1)
WORKERS = {"replicas": 2, "processes": 1, "template": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}}
FILE = "/data/judges/sum.py"
WRITE = f"""
from pathlib import Path
Path("{FILE}").parent.mkdir(exist_ok=True)
Path("{FILE}").write_text('''
import time

def reward(response, answer):
    time.sleep(0.01)
    return {{"score": float(response.strip() == answer), "length": len(response)}}
''')
"""
KILL = """
import psutil
(process,) = [p for p in psutil.process_iter() if "rljob_trainer.rewards.worker" in p.cmdline()]
process.kill()
"""


@pytest.fixture(scope="module")
def job(lab: Lab) -> Job:
    """The example, scored by a file; the first entry is for no row, so that the role has another number than 0."""
    lab.python(WRITE)
    rewards = [
        {"dataSource": "none", "rule": "exactMatch"},
        {"python": {"path": FILE}, "timeoutSeconds": 60, "workers": WORKERS},
    ]
    return lab.start("scored-in-pods", rewards=rewards, train={"steps": STEPS})


def test_neither_a_killed_process_nor_a_lost_pod_costs_a_sample_and_the_job_learns_on(lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=600)
    pod, lost = names.pod(job.name, ROLE, 0), job.uid(ROLE, 1)
    lab.kube.execute(pod, "python", "-c", KILL)
    wait_for("the failure in the status", lambda: _is_named(job, pod), 300)
    lab.kube.kubectl("delete", "pod", names.pod(job.name, ROLE, 1), "--grace-period=0", "--force")
    wait_for("another pod", lambda: job.uid(ROLE, 1) not in ("", lost), 300)
    step = job.status().progress.step
    job.wait("both pods", lambda s: s.scorers[ROLE].text == "2/2" and s.progress.step > step, 600)
    status = job.wait_for_state("Succeeded", timeout=1200)
    assert attempts(status) == (1, 0)
    assert not any(lab.series(job.name, "reward/failed").values()), "all of them were scored again"
    assert lab.series(job.name, "reward_metrics/length")[STEPS] > 0
    assert status.progress.evaluation["last"] > status.progress.evaluation["first"]


def _is_named(job: Job, pod: str) -> bool:
    found = job.status().last_rollout_failure
    return found is not None and found.pod == pod and "SIGKILL" in found.failure.exception
