"""Images and vision towers: combinations that are not proven are refused."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import FAMILIES, family_of
from rljob_api.family import Family
from rljob_api.rules.engine import SIZES, Violation
from rljob_api.spec import RLJobSpec

TOWER_PARTS = ("vision", "projector")


def vision_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Settings that do not work with a model that reads images, and settings that need one."""
    family = family_of(config)
    if family and family.vision:
        yield from _layout_violations(spec, family)
        yield from _vocabulary_violations(spec, config)
        yield from _companion_violations(spec, family)
    elif family:
        yield from _unseen(spec, family)


def _unseen(spec: RLJobSpec, family: Family) -> Iterator[Violation]:
    rule = f"models of the type {family.model_type} read no images"
    able = [
        f.model_type for f in FAMILIES.values() if f.vision and (spec.supervised or spec.trainer.device in f.servers)
    ]
    fix = f"remove it, or use one of {', '.join(able)}"
    if spec.data.image_key:
        yield Violation("spec.data.imageKey", spec.data.image_key, rule, fix)
    if spec.model.freeze:
        yield Violation("spec.model.freeze", ", ".join(spec.model.freeze), rule, fix)


def _layout_violations(spec: RLJobSpec, family: Family) -> Iterator[Violation]:
    sizes = spec.trainer.parallelism
    for way, size in (("pipeline", sizes.pipeline), ("context", sizes.context)):
        if size > 1 and way not in family.layouts:
            rule = f"{way} parallelism of models with a vision tower is not proven"
            yield Violation(f"spec.{SIZES}.{way}", str(size), rule, "set 1, and raise tensor or the number of ranks")
    if spec.trainer.overlap.grad_reduce and set(spec.model.freeze) != set(TOWER_PARTS):
        rule = "a micro-batch without an image gives the vision tower no gradient to reduce"
        fix = f"remove it, or set spec.model.freeze: [{', '.join(TOWER_PARTS)}]"
        yield Violation("spec.trainer.overlap.gradReduce", "true", rule, fix)


def _vocabulary_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """megatron-bridge fills up a vocabulary in models of text alone (conversion/param_mapping.py, ColumnParallelMapping.hf_to_megatron)."""
    tensor, words = spec.trainer.parallelism.tensor, config.get("vocab_size") or 0
    if words % tensor:
        rule = f"vocab_size = {words} of a model with a vision tower is not divisible by it"
        yield Violation(f"spec.{SIZES}.tensor", str(tensor), rule, f"choose a divisor of {words}")


def _companion_violations(spec: RLJobSpec, family: Family) -> Iterator[Violation]:
    """Other models of the job that would have to read images."""
    if spec.critic:
        rule = f"a critic of the type {family.model_type} is not proven"
        yield Violation("spec.critic", "set", rule, "use an advantage without a critic, such as grpo")
    if spec.task == "rewardModel":
        rule = f"reward models of the type {family.model_type} are not proven"
        yield Violation("spec.task", spec.task, rule, "use another model")
    if spec.data.image_key:
        yield from _unseeing(spec)


def _unseeing(spec: RLJobSpec) -> Iterator[Violation]:
    """Models that are given the tokens of a sample without its images."""
    for i, reward in enumerate(spec.rewards):
        if reward.model:
            rule = "reward models on the trainer's ranks read no images"
            yield Violation(f"spec.rewards[{i}].model", "set", rule, "use another kind of reward")
        elif reward.scores_tokens:
            rule = "reward models on servers are sent token ids, without images"
            yield Violation(f"spec.rewards[{i}].vllm", "set", rule, "set vllm.judge, or use another kind of reward")
    distillation = spec.algorithm.distillation
    if distillation and distillation.pool:
        rule = "a teacher on servers is sent token ids, without images"
        fix = "use distillation.reference, whose ranks read images"
        yield Violation("spec.algorithm.distillation.pool", distillation.pool, rule, fix)
