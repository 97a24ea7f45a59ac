"""Supervised tasks: a job that is killed resumes bit by bit, and reinforcement learning starts from what another job exports."""

import yaml

from e2e.conftest import Lab
from e2e.job import EXAMPLES, Job, attempts
from e2e.test_b_trainer_failure import kill_rank_0
from rljob_api import names


def test_a_killed_sft_job_resumes_bit_by_bit_and_never_had_rollouts(lab: Lab) -> None:
    undisturbed = lab.start("tuned", of="sft")
    undisturbed.wait_for_state("Succeeded", timeout=600)
    job = lab.start("tuned-again", of="sft")
    kill_rank_0(lab, job, attempt=1, step=25)
    assert not lab.kube.exists("statefulset", names.gang(job.name, names.ROLE_ROLLOUT))
    assert lab.kube.list("secret", names.selector(job.name)) == []

    status = job.wait_for_state("Succeeded", timeout=600)
    assert attempts(status) == (2, 1)
    losses = list(lab.losses(job.name).values())
    assert lab.losses(job.name) == lab.losses(undisturbed.name) and len(losses) == status.progress.steps
    assert losses[-1] < losses[0]
    assert "loss " in lab.kube.kubectl("get", "rljob", job.name)


def test_reinforcement_learning_starts_from_what_fine_tuning_exported(lab: Lab, baseline: Job) -> None:
    first, second = (f"gitops/chain/{part}" for part in ("sft", "grpo"))
    spec = yaml.safe_load((EXAMPLES / first / "rljob.yaml").read_text())["spec"]
    tuned = lab.start("chain-sft", of=first, checkpoint={"path": spec["checkpoint"]["path"]})
    tuned.wait_for_state("Succeeded", timeout=600)
    rewarded = lab.start("chain-grpo", of=second)
    status = rewarded.wait_for_state("Succeeded", timeout=600)
    assert rewarded.object()["spec"]["model"]["path"] == tuned.status().progress.export
    assert status.progress.evaluation["first"] > baseline.status().progress.evaluation["first"]
