"""The example succeeds and learns; what is finished stays finished."""

import json
import time

from e2e.conftest import Lab
from e2e.job import Job
from e2e.prepare import read_file


def test_the_example_learns(lab: Lab, baseline: Job) -> None:
    rewards = list(lab.series(baseline.name, "reward/mean").values())
    assert sum(rewards[-10:]) / 10 >= sum(rewards[:10]) / 10 + 0.1
    evaluation = baseline.status().progress.evaluation
    assert evaluation["last"] > evaluation["first"]


def test_trainer_and_rollouts_agree_on_log_probabilities_in_every_step(lab: Lab, baseline: Job) -> None:
    differences = lab.series(baseline.name, "train_rollout/log_prob_diff_max")
    assert len(differences) == 60
    assert max(differences.values()) < 1e-3


def test_the_export_is_a_model_that_transformers_loads_and_that_answers(lab: Lab, baseline: Job) -> None:
    program = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
d = "{baseline.status().progress.export}"
tokenizer, model = AutoTokenizer.from_pretrained(d), AutoModelForCausalLM.from_pretrained(d)
print(model.config.model_type, all(p.isfinite().all() for p in model.parameters()), len(tokenizer("12+34=").input_ids))
"""
    assert lab.python(program).split()[:2] == ["qwen2", "True"]


def test_the_checkpoints_of_the_status_are_complete_on_the_volume(lab: Lab, baseline: Job) -> None:
    kept = baseline.status().checkpoint.kept
    assert [c.step for c in kept] == [40, 50, 60]
    for checkpoint in kept:
        assert json.loads(read_file(lab.kube, f"{checkpoint.path}/manifest.json"))["files"]


def test_a_finished_job_has_no_pods_and_is_not_run_again_when_the_operator_restarts(lab: Lab, baseline: Job) -> None:
    before = baseline.wait("no pods", lambda _: baseline.pods() == [], 180)
    lab.system.kubectl("rollout", "restart", "deployment/rljob")
    lab.system.kubectl("rollout", "status", "deployment/rljob", "--timeout=300s", timeout=330)
    baseline.kube.kubectl("annotate", "rljob", baseline.name, f"touched-by-test={time.time_ns()}", "--overwrite")
    time.sleep(10)  # for what the new operator must not do
    after = baseline.status()
    assert (after.outcome, after.attempt, baseline.pods()) == ("Succeeded", before.attempt, [])
