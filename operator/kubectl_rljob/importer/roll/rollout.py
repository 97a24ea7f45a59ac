"""Who generates in ROLL, how far ahead of training, and how older samples are weighted."""

import math
from collections.abc import Iterator

from kubectl_rljob.importer.roll.layout import gpus, machine
from kubectl_rljob.importer.settings import Settings
from kubectl_rljob.importer.table import Said
from kubectl_rljob.importer.values import divisor
from rljob_api.spec.algorithm import MOST_STALENESS


def rollouts(settings: Settings) -> Iterator[Said]:
    train, infer = gpus(settings, "actor_train.device_mapping"), gpus(settings, "actor_infer.device_mapping")
    name = "actor_infer.strategy_args.strategy_name"
    if settings[name] != "vllm":
        yield settings.changed(name, "vLLM generates")
    size_key = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
    key = size_key if size_key in settings else "actor_infer.num_gpus_per_worker"
    wanted, per_node = settings.integer(key) if settings[key] is not None else 1, machine(settings)[1]
    if infer and not {*train} & {*infer}:
        yield settings.field("rollout.placement", "separate", "actor_infer.device_mapping")
        yield settings.field("rollout.replicas", max(1, len(infer) // wanted), "actor_infer.device_mapping", key)
        yield settings.field("rollout.tensorParallel", wanted, key)
        return
    yield settings.field("rollout.placement", "colocated", "actor_infer.device_mapping")
    yield settings.field("rollout.tensorParallel", divisor(per_node, min(wanted, per_node)), key)
    if {*infer} != {*train}:
        yield settings.changed("actor_infer.device_mapping", "rollouts are on all of the trainer's GPUs, and no others")


def offload(settings: Settings) -> Iterator[Said]:
    """Training states leave the GPUs that generate as well."""
    key, per_step = "actor_train.is_offload_states", "actor_train.is_offload_optimizer_states_in_train_step"
    together = {*gpus(settings, "actor_train.device_mapping")} & {*gpus(settings, "actor_infer.device_mapping")}
    moved = bool(together) and bool(settings[key])
    for section in ("trainer", *(("critic",) if settings["adv_estimator"] == "gae" else ())):
        for part in ("parameters", "gradients", "optimizer"):
            if moved:
                yield settings.field(f"{section}.offload.{part}", True, key)
    if settings[per_step] and not moved:
        yield settings.field("trainer.offload.optimizer", True, per_step)


def asynchrony(settings: Settings) -> Iterator[Said]:
    ratio, weight = "async_generation_ratio", "train_infer_correction.is_weight."
    ahead = settings.number(ratio)
    if ahead > MOST_STALENESS:
        yield settings.lacking(
            ratio, f"samples are at most {MOST_STALENESS} updates old: {MOST_STALENESS} in its place"
        )
    separate = not {*gpus(settings, "actor_train.device_mapping")} & {*gpus(settings, "actor_infer.device_mapping")}
    if ahead and separate:
        yield settings.field("train.staleness", min(math.ceil(ahead), MOST_STALENESS), ratio)
    elif ahead:
        yield settings.lacking(ratio, "colocated rollouts sleep while the policy is trained")
    kind = settings[f"{weight}weight_type"] if settings[f"{weight}enabled"] else None
    if kind in ("token", "sequence"):
        yield settings.field("algorithm.rolloutCorrection.importanceSampling", kind, f"{weight}weight_type")
        yield settings.field(
            "algorithm.rolloutCorrection.cap", float(settings.number(f"{weight}upper_bound")), f"{weight}upper_bound"
        )
    elif ahead and separate:
        yield settings.field(
            "algorithm.rolloutCorrection.importanceSampling",
            "token",
            ratio,
            why="samples of an older policy are weighted",
        )
    if kind not in (None, "token", "sequence"):
        yield settings.lacking(f"{weight}weight_type", "weights are of tokens or sequences")
