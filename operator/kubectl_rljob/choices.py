"""What a suggestion changes: the layouts that are looked at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from rljob_api.sizing.layout import Layout, divisors
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.split import WAYS, even_split
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Parallelism, Recompute
from rljob_api.spec.roles import CriticSpec
from rljob_api.spec.train import TrainSpec

DEEPEST, LONGEST, MOST_EXPERTS = 64, 16, 256
"""Largest pipeline, context parallelism and expert parallelism that are looked at."""
TOKENS: int = TrainSpec.model_fields["tokens_per_micro_batch"].default
"""Of a micro-batch, where the user wrote no number."""
ON_HOST = {"optimizer": False, "update": True}
"""Changes of `offload` by which the optimizer is never on the GPU."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a suggestion changes."""

    parallelism: Parallelism
    recompute: Recompute
    servers: int
    """Tensor parallelism of servers."""
    replicas: int
    """Number of servers of the same GPUs as the job's."""
    updated: bool
    """Steps of the optimizers on the trainer's ranks are taken on the host, whatever the job says."""
    tokens: int
    """Of a micro-batch on a rank of the trainer."""

    def of(self, spec: RLJobSpec, shape: Shape) -> RLJobSpec:
        """The spec with it, unchecked."""
        config = _cut(spec.trainer.transformer_config, shape, self.parallelism.pipeline)
        changes = {"parallelism": self.parallelism, "recompute": self.recompute, "transformer_config": config}
        critic = spec.critic
        if self.updated:
            changes["offload"] = spec.trainer.offload.model_copy(update=ON_HOST)
            if critic and shared_critic(spec):
                critic = critic.model_copy(update={"offload": critic.offload.model_copy(update=ON_HOST)})
        rollout = spec.rollout.model_copy(update={"tensor_parallel": self.servers, "replicas": self.replicas})
        trainer = spec.trainer.model_copy(update=changes)
        train = spec.train.model_copy(update={"tokens_per_micro_batch": self.tokens})
        return spec.model_copy(update={"trainer": trainer, "train": train, "rollout": rollout, "critic": critic})

    def settings(self, given: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        """What `--set` makes of it, by path. `given`: the spec as the user wrote it. None removes a field."""
        trainer = given.get("trainer") or {}
        config = _cut(trainer.get("transformerConfig") or {}, shape, self.parallelism.pipeline)
        by_path = {
            "trainer.parallelism": self.parallelism.model_dump(by_alias=True, exclude_defaults=True),
            "trainer.transformerConfig": config,
            "trainer.recompute": self.recompute.model_dump(by_alias=True, exclude_defaults=True),
        }
        critic = given.get("critic")
        shared = critic is not None and not critic.get("processesPerNode")
        for path in ("trainer.offload", *(["critic.offload"] if shared else [])) if self.updated else ():
            kept = {part: on for part, on in (_at(given, path) or {}).items() if part != "optimizer"}
            by_path[path] = kept | {"update": True}
        changed = {path: value or None for path, value in by_path.items() if value != (_at(given, path) or {})}
        numbers = {
            "rollout.tensorParallel": (self.servers, 1),
            "rollout.replicas": (self.replicas, 1),
            "train.tokensPerMicroBatch": (self.tokens, TOKENS),
        }
        return changed | {path: size for path, (size, unset) in numbers.items() if size != _at(given, path, unset)}


def choices(spec: RLJobSpec, shape: Shape, updated: bool) -> Iterator[Choice]:
    """Sizes that divide the ranks and the model, small ones first."""
    ranks = Layout(spec.trainer.nodes * spec.trainer.processes_per_node).world
    pools = [(1, spec.rollout.replicas)] if spec.supervised else [*_pools(spec)]
    recomputes = {r.model_dump_json(): r for r in (Recompute(), spec.trainer.recompute, Recompute(granularity="full"))}
    for tensor, pipeline, context in product(
        divisors(spec.trainer.processes_per_node),
        divisors(ranks, min(DEEPEST, shape.layers)),
        divisors(ranks, LONGEST),
    ):
        if ranks % (tensor * pipeline * context):
            continue
        for expert in divisors(shape.experts, MOST_EXPERTS) if shape.experts else [1]:
            sizes = Parallelism(
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                expert=expert,
                expert_tensor=1 if shape.experts and tensor > 1 else None,
            )
            for way, pool in product(recomputes.values(), pools):
                yield Choice(sizes, way, *pool, updated, spec.train.tokens_per_micro_batch)


def _pools(spec: RLJobSpec) -> Iterator[tuple[int, int]]:
    """Tensor parallelism and number of servers, on as many GPUs as the job's servers have."""
    rollout = spec.rollout
    if rollout.servers_per_gpu > 1:  # those that share a GPU have no other
        yield 1, rollout.replicas
        return
    for tensor in divisors(spec.trainer.processes_per_node):
        if not rollout.servers:  # on the trainer's GPUs, or none
            yield tensor, rollout.replicas
        elif rollout.replicas * rollout.tensor_parallel % tensor == 0:
            yield tensor, rollout.replicas * rollout.tensor_parallel // tensor


def shared_critic(spec: RLJobSpec) -> CriticSpec | None:
    """The critic, if it is on the trainer's ranks."""
    return spec.critic if spec.critic and not spec.critic.processes_per_node else None


def _cut(given: Mapping[str, Any], shape: Shape, pipeline: int) -> dict[str, Any]:
    """transformerConfig with the keys that cut layers into stages as equal as they can be."""
    return {key: value for key, value in given.items() if not any(key in way for way in WAYS)} | (
        even_split(shape.layers, pipeline) or {}
    )


def _at(given: Any, path: str, unset: Any = None) -> Any:
    """What the user wrote at a path; `unset`: nothing."""
    for key in path.split("."):
        given = given.get(key) if isinstance(given, dict) else None
    return unset if given is None else given
