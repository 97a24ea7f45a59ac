"""Another split of a job's GPUs between training and generation, where it has more tokens/s by the model than the job's own: `plan --suggest`
searches layouts for the numbers of nodes and servers that a job has, and then for the most promising other numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from kubectl_rljob.planning import Plan
from kubectl_rljob.suggesting import Planned, Suggestion, elsewhere, put, suggest
from rljob_api.manifest import Manifest
from rljob_api.sizing.training import Machine
from rljob_api.spec import RLJobSpec

WORTH = 1.02
"""How many times as fast another split has to be."""
NEAREST = 3
"""Splits for which layouts are searched: those nearest to the best one if training and generation both scaled evenly."""


@dataclass(frozen=True, slots=True)
class GpuSplit:
    """The job with other numbers of nodes and servers, on as many GPUs in all, and the best layout for them."""

    settings: dict[str, Any]
    training: int
    """GPUs."""
    generating: int
    """GPUs."""
    tokens_per_second: float

    def dump(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "trainingGpus": self.training,
            "generatingGpus": self.generating,
            "tokensPerSecond": round(self.tokens_per_second),
        }


def better_split(job: Manifest, base: Plan, best: Suggestion, machine: Machine, planned: Planned) -> GpuSplit | None:
    """Faster than the `best` suggestion for the numbers of `base`. None: of the nearest ones none is, or all pods share their GPUs."""
    spec = base.spec
    if spec is None or not is_split(spec):
        return None
    ideal, node = _ideal(spec, best), spec.trainer.processes_per_node
    nearest = sorted(others(spec), key=lambda numbers: abs(numbers["trainer.nodes"] * node - ideal))[:NEAREST]
    splits = [split for numbers in nearest for split in _with(numbers, job, machine, planned)]
    enough = best.speed.tokens_per_second * WORTH
    faster = [split for split in splits if split.tokens_per_second > enough]
    return max(faster, key=lambda split: split.tokens_per_second, default=None)


def is_split(spec: RLJobSpec) -> bool:
    """Whether the job's GPUs are those of trainer pods and of servers in pods of their own."""
    return not spec.supervised and spec.rollout.placement == "separate" and spec.rollout.replicas > 0


def others(spec: RLJobSpec) -> Iterator[dict[str, int]]:
    """Other numbers of trainer nodes and of servers, on as many GPUs in all."""
    total, node, server = sum(_gpus(spec)), spec.trainer.processes_per_node, spec.rollout.gpus
    for nodes in range(1, total // node + 1):
        servers, rest = divmod(total - nodes * node, server)
        if servers and not rest and nodes != spec.trainer.nodes:
            yield {"trainer.nodes": nodes, "rollout.replicas": servers}


def _with(numbers: dict[str, int], job: Manifest, machine: Machine, planned: Planned) -> Iterator[GpuSplit]:
    """At most one: with the best layout."""
    changed = replace(job, spec=reduce(put, numbers.items(), job.spec))
    base = planned(changed)
    if base.spec is None or elsewhere(base.violations):
        return
    for layout in suggest(changed, base, machine, planned).suggestions[:1]:
        assert layout.plan.spec
        yield GpuSplit(numbers | layout.settings, *_gpus(layout.plan.spec), layout.speed.tokens_per_second)


def _ideal(spec: RLJobSpec, best: Suggestion) -> float:
    """GPUs for training with which a step would be shortest, if both parts took less time in proportion to their GPUs."""
    training, generating = _gpus(spec)
    train, generate = best.speed.train * training, best.speed.generate * generating
    if not best.speed.overlapped:
        train, generate = math.sqrt(train), math.sqrt(generate)
    return (training + generating) * train / (train + generate)


def _gpus(spec: RLJobSpec) -> tuple[int, int]:
    """For training and for generation."""
    return spec.trainer.nodes * spec.trainer.processes_per_node, spec.rollout.replicas * spec.rollout.gpus
