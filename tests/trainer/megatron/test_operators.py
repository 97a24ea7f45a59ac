"""What a pass launches does not grow with its sequences: a GPU that is launched at sequence by sequence is idle for most of a step.

On CPU the attention itself goes by lengths in place of sequences (attention.py), so that sequences here are equally long. Gated delta nets go by
chunks of a row (gated_delta_net.py), so that all sequences together fit into one.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.algorithm.preference import PreferenceObjective, RewardModelObjective
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.trajectory import Trajectory, prompt, sampled
from trainer.megatron.gang import changed
from trainer.megatron.kinds import KINDS, TIED, family_of
from trainer.megatron.models import job, make_model
from trainer.megatron.operators import Count, Operators
from trainer.megatron.vision import make_image
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

OBJECTIVES: dict[str, Callable[[RLJobSpec], Objective]] = {
    "rl": PolicyObjective,
    "sft": lambda spec: CrossEntropyObjective(spec.sft),
    "dpo": lambda spec: PreferenceObjective(spec.dpo),
    "rewardModel": lambda _: RewardModelObjective(),
}
CASES: dict[str, dict[str, Any]] = {
    "rl": {},
    "sft": {},
    "dpo": {"dpo": {}},
    "rewardModel": {},
    "rl, adapters": {"model": {"lora": {"rank": 4}}},
    "rl, sequences": {"algorithm": {"loss": "gspo", "rolloutCorrection": {"importanceSampling": "sequence"}}},
    "rl, critic": {"algorithm": {"advantage": "gae"}, "critic": {}},
    "rl, context": {"trainer": {"nodes": 2, "parallelism": {"context": 2}}},
    "rl, tensor": {"trainer": {"nodes": 2, "parallelism": {"tensor": 2}}},
    "rl, recomputed": {"trainer": {"recompute": {"granularity": "full"}}},
}
"""Sections of the spec, by task and what is special."""


ALWAYS = ("qwen2", "qwen3_moe", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_moe_text", "qwen3_vl")
"""Every kind of attention, of experts and of images."""


@pytest.mark.parametrize("kind", extra_but(ALWAYS, KINDS))
def test_operators_of_every_kind_of_model_do_not_grow_with_sequences(megatron: None, tmp_path: Path, kind: str) -> None:
    """Where models read images, all sequences have the same. With these, few fit into a chunk of a gated delta net."""
    source = make_model(tmp_path / "model", kind, kind in TIED)
    images = [(1, make_image((4, 4), 0))] if "vision_config" in KINDS[kind][1] else []
    spec = job(source, tokensPerMicroBatch=512, batches={"replay": "/r"})
    assert_constant(spec, 1, "rl", images, pairs=1 if images and FAMILIES[family_of(kind)].states else 2)


@pytest.mark.parametrize("case", extra_but([case for case in CASES if case not in ("sft", "rl, tensor")], CASES))
def test_operators_of_every_task_do_not_grow_with_sequences(model: Path, case: str) -> None:
    task, sections = case.partition(",")[0], CASES[case]
    spec = changed(job(model, tokensPerMicroBatch=512), **sections)
    assert_constant(spec, sections.get("trainer", {}).get("nodes", 1), task, [])


def assert_constant(spec: RLJobSpec, world: int, task: str, images: list[Placed], pairs: int = 2) -> None:
    of = lambda pairs: partial(_pass, spec, OBJECTIVES[task], _batch(2 * pairs, images))  # noqa: E731
    for few, many in zip(run_ranks(world, of(pairs)), run_ranks(world, of(2 * pairs)), strict=True):
        assert sum(few.values()) > 100
        assert many == few, many - few


def _batch(count: int, images: list[Placed]) -> Batch:
    """Pairs of samples of 8 tokens, or of one image more."""
    asked = [1] * (4 + sum(2 + image.tokens for _, image in images))
    return Batch.of(1, [_sample(i, prompt(asked, images)) for i in range(count)], {})


def _sample(number: int, asked: Any) -> Trajectory:
    answer = sampled(np.arange(4, dtype=np.int32), np.full(4, -5.0, np.float32), 0)
    named: dict[str, Any] = {"prompt_index": number // 2, "group": number // 2, "sample": number % 2}
    score: dict[str, Any] = {"finish_reason": "stop", "reward": float(number % 2), "data_source": ""}
    return Trajectory(segments=(asked, answer), **named, **score)


def _pass(spec: RLJobSpec, objective: Callable[[RLJobSpec], Objective], batch: Batch) -> Count:
    """On a rank, of a forward and backward pass of every network that learns, in one micro-batch; the second, when tables of sequences are known."""
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(spec, lambda: None, objective(spec))
    step = engine.measure(batch)
    for name, values in engine.objective.advantages(step).columns.items():
        step.put(name, values)
    (mini_batch,) = step.batches
    assert len(mini_batch.micro_batches) == 1
    found: Count = Counter()
    for network, learnt in engine._learners():
        step.put_loss_weights(learnt)
        with network.offloader.using("parameters", "gradients"), engine._policy.routing.replayed():
            network._gradients(mini_batch, learnt)
            with Operators() as operators:
                network._gradients(mini_batch, learnt)
        found += operators.found
    scale = engine._policy.passes.config.moe_grad_scale_func
    assert scale() is scale(), "what each micro-batch brings from the host waits for the device"
    return found
