"""`spec.rollout.exact`: what computes the same bits in servers and ranks. Everything else is refused by name."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import family_of
from rljob_api.family import DeviceType
from rljob_api.rules.engine import Check, Violation
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

FAMILIES: dict[DeviceType, tuple[str, ...]] = {"cpu": ("llama", "qwen2", "qwen3"), "gpu": ("qwen2",)}
"""With which whole jobs have shown equal bits. Every operation of all of them has a kernel in megatron/exact of the trainer."""
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
    on_gpus = unshown_on_gpus(spec) if spec.trainer.device == "gpu" else ()
    for place, wrong, rule in (*_unequal(spec), *on_gpus):
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


def unshown_on_gpus(spec: RLJobSpec) -> Iterator[tuple[str, Any, str]]:
    """Likewise, of what has been shown on CPUs only."""
    trainer, rollout = spec.trainer, spec.rollout
    ranks = "it has been shown on GPUs with one rank only"
    yield "trainer.nodes", trainer.nodes > 1, ranks
    yield "trainer.processesPerNode", trainer.processes_per_node > 1, ranks
    yield "model.dtype", spec.model.dtype != "bfloat16", "it has been shown on GPUs for bfloat16 only"
    temperature = rollout.sampling.temperature
    yield "rollout.sampling.temperature", temperature != 1, "it has been shown on GPUs for temperature 1 only"
    cached = rollout.vllm_args.get("enable-prefix-caching")
    yield "rollout.vllmArgs.enable-prefix-caching", cached, "it has been shown on GPUs without cached prefixes only"


def exact_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Of the model's config.json."""
    family = family_of(config)
    if not spec.rollout.exact or family is None:
        return
    device = spec.trainer.device
    if family.model_type not in FAMILIES[device]:
        rule = f"nothing shows that servers and ranks on a {device} compute {family.model_type} with equal bits"
        yield Violation("spec.rollout.exact", "true", rule, f"set false, or use one of {', '.join(FAMILIES[device])}")
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotation.get("rope_type", "default") if isinstance(rotation, dict) else "default"
    if kind != "default":
        rule = (
            f"the model's config.json has rope_type {as_written(kind)}, and equal bits have been shown for default only"
        )
        yield Violation("spec.rollout.exact", "true", rule, "set false")


RULES: tuple[Check, ...] = (object_violations,)
