"""`spec.rollout.exact`: what computes the same bits in servers and ranks. Everything else is refused by name."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import family_of
from rljob_api.family import DeviceType
from rljob_api.rules.engine import Check, Violation
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

FAMILIES = ("llama", "qwen2", "qwen3")
"""Whose every operation has a kernel in megatron/exact of the trainer."""
DEVICES: tuple[DeviceType, ...] = ("cpu",)
"""On which whole jobs have shown equal bits."""
ARGUMENTS = (
    "enable-prefix-caching",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "max-num-batched-tokens",
    "max-num-seqs",
    "seed",
)
"""Of spec.rollout.vllmArgs: those that choose no kernel."""
FIX = "set false, or change it"


def object_violations(spec: RLJobSpec) -> Iterator[Violation]:
    if not spec.rollout.exact:
        return
    for place, wrong, rule in _unequal(spec):
        if wrong:
            yield Violation("spec.rollout.exact", "true", f"spec.{place}: {rule}", FIX)
    for place, given, allowed in (
        ("rollout.vllmArgs", spec.rollout.vllm_args, ARGUMENTS),
        ("trainer.transformerConfig", spec.trainer.transformer_config, ()),
    ):
        for key in sorted(given.keys() - set(allowed)):
            rule = "nothing shows that servers and ranks compute the same bits with it"
            yield Violation(f"spec.{place}.{key}", as_written(given[key]), rule, "remove it, or spec.rollout.exact")


def _unequal(spec: RLJobSpec) -> Iterator[tuple[str, Any, str]]:
    """(field, whether it has a value that is not exact, why)"""
    parallelism, rollout = spec.trainer.parallelism, spec.rollout
    order = "sums over several ranks are rounded in another order than in a server"
    yield "trainer.device", spec.trainer.device not in DEVICES, "whole jobs have shown equal bits on CPUs only"
    yield "trainer.parallelism.tensor", parallelism.tensor > 1, order
    yield "trainer.parallelism.context", parallelism.context > 1, order
    yield "trainer.parallelism.pipeline", parallelism.pipeline > 1, "it has been shown with one stage only"
    yield "rollout.tensorParallel", rollout.tensor_parallel > 1, "the server's sums would be those of several processes"
    yield "rollout.pipelineParallel", rollout.pipeline_parallel > 1, "it has been shown with one stage only"
    merged = "a server multiplies with merged weights, which are rounded once more than the ranks' products"
    yield "model.lora", spec.model.lora, merged
    yield "rollout.speculation", rollout.speculation, "it has been shown without guesses only"
    kept = "tokens would depend on keys and values of an older policy"
    yield "rollout.interrupt", rollout.interrupt == "keep", kept
    yield "data.imageKey", spec.data.image_key, "it has been shown for text only"
    yield "model.multiTokenPrediction", spec.model.multi_token_prediction, "it has been shown without this layer only"


def exact_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Of the model's config.json."""
    family = family_of(config)
    if not spec.rollout.exact or family is None:
        return
    if family.model_type not in FAMILIES:
        rule = f"nothing shows that servers and ranks compute {family.model_type} with equal bits"
        yield Violation("spec.rollout.exact", "true", rule, f"set false, or use one of {', '.join(FAMILIES)}")
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotation.get("rope_type", "default") if isinstance(rotation, dict) else "default"
    if kind != "default":
        rule = (
            f"the model's config.json has rope_type {as_written(kind)}, and equal bits have been shown for default only"
        )
        yield Violation("spec.rollout.exact", "true", rule, "set false")


RULES: tuple[Check, ...] = (object_violations,)
