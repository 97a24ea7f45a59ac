"""PPO with critic and reference, DAPO with dynamic sampling, and a mixture of experts over two ranks: each learns, from its example's manifest.

DAPO does so with its servers in the trainers' pods.
"""

import pytest

from e2e.conftest import Lab
from e2e.job import Job
from e2e.prepare import run_preparation

pytestmark = pytest.mark.extra  # the example of all tests learns by GRPO

COLOCATED = {
    "rollout": {"placement": "colocated", "template": None},
    "trainer": {"template": {"resources": {"limits": {"memory": "7Gi"}}}},
}
WAYS: dict[str, dict[str, object]] = {"ppo": {}, "dapo": COLOCATED, "moe": {}}


@pytest.fixture(scope="module", params=WAYS)
def finished(lab: Lab, request: pytest.FixtureRequest) -> Job:
    if request.param == "moe":
        run_preparation(lab.kube, lab.provider, "moe")
    job = lab.start(request.param, of=request.param, **WAYS[request.param])
    job.wait_for_state("Succeeded", timeout=900)
    return job


def test_the_job_learns_and_agrees_with_its_rollouts(lab: Lab, finished: Job) -> None:
    evaluation = finished.status().progress.evaluation
    assert evaluation["last"] > evaluation["first"] + 0.1
    differences = lab.series(finished.name, "train_rollout/log_prob_diff_max")
    assert len(differences) == finished.status().progress.steps
    assert max(differences.values()) < 1e-3
