"""Keys of Megatron and vLLM that are passed through verbatim: they have to exist, may not be set by anything else, and have to fit the spec."""

from collections.abc import Callable, Iterator

from rljob_api import names
from rljob_api.rules.engine import Check, Violation
from rljob_api.rules.key_tables import (
    OWNED_POOL_ARGUMENTS,
    OWNED_TRANSFORMER_CONFIG,
    OWNED_VLLM_ARGUMENTS,
    TRANSFORMER_CONFIG,
    VLLM_ARGUMENTS,
)
from rljob_api.rules.layout import JudgedRanks, of_the_trainer
from rljob_api.sizing.server_arguments import CACHE, SHARE
from rljob_api.sizing.split import WAYS
from rljob_api.spec import RLJobSpec
from rljob_api.text import nearest

TRANSFORMER = "trainer.transformerConfig"
LARGEST = 2**53
COUNTED: dict[str, tuple[Callable[[float], bool], str]] = {
    "max-num-seqs": (lambda given: 1 <= given <= LARGEST, "of at least 1"),
    SHARE: (lambda given: 0 < given <= 1, "above 0, and at most 1"),
    CACHE: (lambda given: 0 < given <= LARGEST, "above 0"),
    "cpu-offload-gb": (lambda given: 0 <= given <= LARGEST, "of at least 0"),
}
"""Arguments of vLLM that estimates of memory are computed with, and which numbers they may be."""
NEEDS_GPU = {
    "apply_rope_fusion": "a kernel of Transformer Engine",
    "moe_permute_fusion": "a kernel of Transformer Engine",
    "moe_router_fusion": "a kernel of Transformer Engine",
    "gradient_accumulation_fusion": "a kernel of Apex or Transformer Engine",
    "masked_softmax_fusion": "a kernel of Apex",
    "persist_layer_norm": "a kernel of Apex",
    "tp_comm_overlap": "Transformer Engine",
    "fp8": "Transformer Engine",
    "fp4": "Transformer Engine",
    "cpu_offloading": "Transformer Engine, and there is no device memory to save",
    "fine_grained_activation_offloading": "CUDA streams, and there is no device memory to save",
    "cp_comm_type": "Transformer Engine's attention; torch layers gather keys and values",
}
"""Keys of transformerConfig that fail with `device: cpu`, and what they need."""
_OF_THEIR_LAYERS = (
    "use_transformer_engine_op_fuser",
    "fp8",
    "fp4",
    "tp_comm_overlap",
    "cuda_graph_impl",
    "enable_cuda_graph",
    "external_cuda_graph",
    "cpu_offloading",
    "fine_grained_activation_offloading",
)
"""Keys of transformerConfig that change the layers that have adapters."""
NOT_WITH_ADAPTERS = dict.fromkeys(_OF_THEIR_LAYERS, "is not proven with spec.model.lora") | {
    "moe_router_bias_update_rate": (
        "changes biases of routers in a model that spec.model.lora keeps as it is, and adapters have none"
    )
}
"""Keys of transformerConfig that are refused next to adapters, and why."""


def transformer_key_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Unknown keys of transformerConfig, and keys that something else sets."""
    if given := ranks.settings.transformer_config:
        yield from _check(ranks.at(TRANSFORMER), given, TRANSFORMER_CONFIG, _owners(ranks))


def _owners(ranks: JudgedRanks) -> dict[str, str]:
    """What sets the keys that may not be passed through. Fields are those of these ranks."""
    return {
        k: ranks.at(o.removeprefix("spec.")) if o.startswith("spec.") else o
        for k, o in OWNED_TRANSFORMER_CONFIG.items()
    }


def vllm_key_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Unknown keys of vllmArgs, and keys that something else sets."""
    yield from _check("spec.rollout.vllmArgs", spec.rollout.vllm_args, VLLM_ARGUMENTS, OWNED_VLLM_ARGUMENTS)
    for i, pool in enumerate(spec.pools):
        yield from _check(f"spec.pools[{i}].vllmArgs", pool.vllm_args, VLLM_ARGUMENTS, OWNED_POOL_ARGUMENTS)


def number_violations(spec: RLJobSpec) -> Iterator[Violation]:
    given = {"spec.rollout": spec.rollout.vllm_args}
    given |= {f"spec.pools[{i}]": pool.vllm_args for i, pool in enumerate(spec.pools)}
    for field, arguments in given.items():
        for key in (key for key in COUNTED if key in arguments):
            value, (allowed, numbers) = arguments[key], COUNTED[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not allowed(value):
                rule = f"must be a number {numbers}, since the plan of memory depends on it"
                yield Violation(f"{field}.vllmArgs.{key}", str(value), rule, _plain(key, value))


def _plain(key: str, value: object) -> str:
    """What to write; of a share that is given in percent, the share."""
    percent = str(value).removesuffix("%").strip()
    if key == SHARE and percent.isdecimal() and 1 < int(percent) <= 100:
        return f"write the share, {int(percent) / 100:g}"
    return "write it as a plain number, or remove it"


def device_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    given = ranks.settings.transformer_config
    if ranks.spec.trainer.device == "cpu":
        for key in (key for key in NEEDS_GPU if given.get(key)):
            yield _refused(ranks, key, f"device cpu has none of what it needs: {NEEDS_GPU[key]}")


def expert_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Keys about experts: core/transformer/transformer_config.py:1745 and :2978, and what a router's loss needs."""
    given = ranks.settings.transformer_config
    dispatcher = given.get("moe_token_dispatcher_type", "alltoall")
    if dispatcher not in ("alltoall", "flex"):
        yield _refused(ranks, "moe_token_dispatcher_type", "packed sequences differ in length", "set alltoall or flex")
    if dispatcher == "flex" and ranks.spec.trainer.device == "cpu":
        yield _refused(ranks, "moe_token_dispatcher_type", "its kernels need GPUs", "set alltoall")
    balancing, coefficient = given.get("moe_router_load_balancing_type", "none"), given.get("moe_aux_loss_coeff")
    if balancing not in ("none", "aux_loss", "global_aux_loss"):
        rule = "it would route otherwise than the rollouts, or takes a whole micro-batch for one sequence"
        yield _refused(ranks, "moe_router_load_balancing_type", rule, "set none, aux_loss or global_aux_loss")
    elif balancing != "none" and not coefficient:
        yield _refused(ranks, "moe_router_load_balancing_type", "has no weight", "set moe_aux_loss_coeff")
    elif balancing == "none" and coefficient:
        yield _refused(ranks, "moe_aux_loss_coeff", "there is no such loss", "set moe_router_load_balancing_type")
    if dispatcher != "flex" and given.get("moe_enable_deepep"):
        yield _refused(ranks, "moe_enable_deepep", "DeepEP is a back end of the flex dispatcher", "set it to flex")


def offload_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Activations in host memory: core/transformer/transformer_config.py:1884-1897 and what follows there."""
    given, recompute = ranks.settings.transformer_config, ranks.settings.recompute
    if given.get("cpu_offloading") and ranks.settings.parallelism.pipeline > 1:
        yield _refused(
            ranks,
            "cpu_offloading",
            f"works in one stage only, and pipeline = {ranks.settings.parallelism.pipeline}",
        )
    if given.get("cpu_offloading") and recompute.granularity != "none":
        yield _refused(
            ranks, "cpu_offloading", f"does not work with {ranks.at('trainer.recompute')} ({recompute.granularity})"
        )
    if given.get("cpu_offloading") and given.get("fine_grained_activation_offloading"):
        yield _refused(ranks, "cpu_offloading", "fine_grained_activation_offloading does the same in another way")
    if given.get("fine_grained_activation_offloading") and not given.get("offload_modules"):
        yield _refused(ranks, "fine_grained_activation_offloading", "needs offload_modules", "name them")
    if given.get("distribute_saved_activations") and recompute.granularity != "full":
        yield _refused(ranks, "distribute_saved_activations", "cuts what full recomputation saves, which is not on")
    sequence = ranks.settings.parallelism.sequence and ranks.settings.parallelism.tensor > 1
    if given.get("distribute_saved_activations") and sequence:
        yield _refused(ranks, "distribute_saved_activations", "sequence parallelism has cut them already")


def adapter_violations(spec: RLJobSpec) -> Iterator[Violation]:
    policy = JudgedRanks.of(spec, names.ROLE_TRAINER)
    for key, rule in NOT_WITH_ADAPTERS.items() if spec.model.lora else ():
        if spec.trainer.transformer_config.get(key):
            yield _refused(policy, key, rule)


def split_violations(ranks: JudgedRanks) -> Iterator[Violation]:
    """Three ways to cut layers into unequal stages (core/transformer/transformer_config.py:1933-1960), one at a time."""
    ways = [{key for key in way if ranks.settings.transformer_config.get(key)} for way in WAYS]
    used = [sorted(way) for way in ways if way]
    if len(used) > 1:
        yield _refused(ranks, used[0][0], f"contradicts {used[1][0]}: both say how many layers a stage gets")
    if used and ranks.settings.parallelism.pipeline == 1:
        yield _refused(ranks, used[0][0], f"there is one stage: {ranks.at('trainer.parallelism.pipeline')} = 1")


def _refused(ranks: JudgedRanks, key: str, rule: str, fix: str = "remove it") -> Violation:
    return Violation(f"{ranks.at(TRANSFORMER)}.{key}", str(ranks.settings.transformer_config[key]), rule, fix)


def _check(field: str, given: dict, known: frozenset[str], owned: dict[str, str]) -> Iterator[Violation]:
    for key, value in given.items():
        if key in owned:
            yield Violation(f"{field}.{key}", str(value), f"this key is set by {owned[key]}", "remove it here")
        elif key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else "see the documentation of the pinned version for its keys"
            yield Violation(f"{field}.{key}", str(value), "there is no such key in the pinned version", hint)


RANKS_CHECKS = (
    transformer_key_violations,
    device_violations,
    expert_violations,
    offload_violations,
    split_violations,
)
RULES: tuple[Check, ...] = (*of_the_trainer(*RANKS_CHECKS), vllm_key_violations, number_violations, adapter_violations)
