"""A judge in a pool: a job learns while it asks it, and neither a killed engine nor a deleted pod of the pool costs a sample or an attempt."""

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.test_c_rollout_failure import SIGNAL_THE_ENGINE
from rljob_api import names

pytestmark = pytest.mark.extra

STEPS = 40
POOL = {
    "name": "judge",
    "model": "/data/model",
    "vllmArgs": {
        "dtype": "float32",
        "max-model-len": 64,
        "chat-template": "{{ messages[0]['content'].split('|')[0] }}",
    },
    "template": {"resources": {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}},
}
JUDGE = {"prompt": "{prompt}|{response}", "score": "([0-9])", "maxTokens": 4}
"""The example's model answers the question again; what it says is asked for, and does not count."""


@pytest.fixture(scope="module")
def job(lab: Lab) -> Job:
    rewards = [
        {"rule": "exactMatch"},
        {"vllm": {"pool": "judge", "judge": JUDGE}, "weight": 0.0, "timeoutSeconds": 60},
    ]
    return lab.start("judged", pools=[POOL], rewards=rewards, train={"steps": STEPS})


def test_a_killed_engine_and_a_deleted_pod_of_the_pool_cost_no_sample(lab: Lab, job: Job) -> None:
    job.wait_for_step(3, timeout=400)
    pod, before = names.pod(job.name, "judge", 0), job.uid("judge", 0)
    lab.kube.execute(pod, "python", "-c", SIGNAL_THE_ENGINE, "9")
    job.wait("the pool without its server", lambda s: s.pools["judge"].ready == 0, 60)
    job.wait(
        "the server again, in its pod", lambda s: s.pools["judge"].ready == 1 and job.uid("judge", 0) == before, 300
    )
    lab.kube.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    job.wait("another pod", lambda s: s.pools["judge"].ready == 1 and job.uid("judge", 0) not in ("", before), 300)
    status = job.wait_for_state("Succeeded", timeout=900)
    assert attempts(status) == (1, 0)
    assert not any(lab.series(job.name, "reward/failed").values())
    assert status.progress.evaluation["last"] > status.progress.evaluation["first"]


def test_the_pools_pods_are_gone_with_the_job(job: Job) -> None:
    job.wait("no pods", lambda _: job.pods("judge") == [], 120)
