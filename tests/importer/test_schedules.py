"""Warm-up and decay of learning rates, in the steps and by the keys that the other system reads."""

import json
from typing import Any

import pytest
import yaml

from importer.converted import verl
from importer.test_golden_files import HERE, INFINITE
from rljob_import import Options
from rljob_import.report import imported

WARM = "data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.optim.lr_warmup_steps=10 "


@pytest.mark.parametrize(
    ("given", "steps"),
    [("", 40), ("actor_rollout_ref.actor.ppo_epochs=2", 80), ("actor_rollout_ref.actor.ppo_mini_batch_size=128", 10)],
)
def test_verls_warm_up_counts_training_steps_of_several_optimizer_steps(given: str, steps: int) -> None:
    """verl 1dda039b9, workers/engine_workers.py: train_mini_batch moves the schedule on with the last of all mini-batches."""
    assert yaml.safe_load(verl(WARM + given).manifest)["spec"]["train"]["optimizer"]["warmupSteps"] == steps


def test_the_warm_up_of_verls_critic_counts_training_steps_as_well() -> None:
    given = "algorithm.adv_estimator=gae critic.optim.lr_warmup_steps=5"
    critic = yaml.safe_load(verl(WARM + given).manifest)["spec"]["critic"]
    assert critic["optimizer"]["warmupSteps"] == 20


def test_a_streamed_run_of_verls_warms_up_by_the_batches_that_it_fetches() -> None:
    text = (HERE / "verl/streamed.sh").read_text()
    changed = text.replace(
        "data.gen_batch_size=1", "data.gen_batch_size=1 actor_rollout_ref.actor.optim.lr_warmup_steps=10"
    )
    changed = changed.replace("require_batches=1", "require_batches=2")
    optimizer = yaml.safe_load(imported("verl", changed, "streamed.sh", Options()).manifest)["spec"]["train"][
        "optimizer"
    ]
    assert optimizer["warmupSteps"] == 20


@pytest.mark.parametrize(
    ("backend", "keys", "steps"),
    [
        ("megatron", {"lr_sched": {"lr_warmup_iters": 3}}, 3),
        ("fsdp", {"optim": {"lr_warmup_steps": 3}}, 3),
        ("fsdp", {"optim": {"lr_warmup_steps": 3}, "lr_sched_sync_with_optim": False}, 12),
        ("fsdp", {"optim": {"lr_warmup_steps_ratio": 0.5, "total_training_steps": 10}}, 5),
        ("fsdp", {"lr_sched": {"lr_warmup_iters": 3}}, None),
        ("megatron", {"optim": {"lr_warmup_steps": 3}}, None),
    ],
)
def test_rlinfs_warm_up_is_in_the_steps_of_the_backend_that_reads_it(
    backend: str, keys: dict[str, Any], steps: int | None
) -> None:
    """RLinf a3816b596, workers/actor/fsdp_actor_worker.py. Four mini-batches a step. A key that the backend does not read is reported."""
    tree = yaml.safe_load((HERE / "rlinf/grpo.yaml").read_text())
    tree["actor"]["training_backend"] = backend
    tree["algorithm"]["n_minibatches"] = 4
    for section in ("lr_sched", "optim"):
        old = tree["actor"].get(section) or {}
        kept = {key: value for key, value in old.items() if not key.startswith("lr_warmup")}
        tree["actor"][section] = kept | keys.get(section, {})
    tree["actor"]["lr_sched_sync_with_optim"] = keys.get("lr_sched_sync_with_optim", True)
    found = imported("rlinf", yaml.safe_dump(tree), "grpo.yaml", Options())
    assert not found.problems
    optimizer = yaml.safe_load(found.manifest)["spec"]["train"]["optimizer"]
    assert optimizer.get("warmupSteps") == steps
    assert (f"RLinf does not read it with {backend}" in found.report) is (steps is None)


@pytest.mark.parametrize(
    ("backend", "keys", "decay", "low"),
    [
        ("megatron", {"lr_sched": {"lr_decay_style": "linear", "min_lr": 1e-7}}, "linear", 1e-7),
        ("fsdp", {"lr_sched": {"lr_decay_style": "linear", "min_lr": 1e-7}}, "constant", None),
        ("fsdp", {"optim": {"lr_scheduler": "cosine", "lr": 1e-5, "min_lr_rate": 0.1}}, "cosine", 1e-6),
        ("fsdp", {"optim": {"lr_scheduler": "cosine", "min_lr": 1e-7}}, "cosine", 1e-7),
    ],
)
def test_rlinfs_rate_falls_by_the_keys_of_its_backend(
    backend: str, keys: dict[str, Any], decay: str, low: float | None
) -> None:
    data = {"train_data_paths": ["/data/a.parquet"]}
    tree = INFINITE | {"data": data, "actor": {"training_backend": backend} | keys}
    found = imported("rlinf", json.dumps(tree), "rlinf.yaml", Options())
    optimizer = yaml.safe_load(found.manifest)["spec"]["train"]["optimizer"]
    assert (optimizer.get("decay", "constant"), optimizer.get("minLearningRate")) == (decay, low)
    unread = "lr_decay_style = linear: RLinf does not read it with fsdp"
    assert (unread in found.report) is (backend == "fsdp" and "lr_sched" in keys)


@pytest.mark.parametrize(
    ("style", "iterations", "said"), [("linear", 7, True), ("linear", 5, False), ("constant", 7, False)]
)
def test_rlinfs_decay_of_another_length_is_reported(style: str, iterations: int, said: bool) -> None:
    schedule = {"lr_sched": {"lr_decay_style": style, "lr_decay_iters": iterations}}
    tree = INFINITE | {"data": {"train_data_paths": ["/data/a.parquet"]}, "actor": schedule}
    report = imported("rlinf", json.dumps(tree), "rlinf.yaml", Options()).report
    assert ("lr_decay_iters" in report.partition("Not expressible")[2]) is said
