"""What a manifest amounts to: the data behind `plan`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kubectl_rljob import fitting
from kubectl_rljob.remedies import remedy
from kubectl_rljob.ways import ServerWays, ways
from rljob_api import names
from rljob_api.manifest import Manifest
from rljob_api.policy import JobPolicy
from rljob_api.rules import Violation
from rljob_api.rules.advice import advice
from rljob_api.rules.lora import beginning_violations
from rljob_api.rules.unread import unread
from rljob_api.rules.volumes import CHECKPOINTS, lost_checkpoints, outside_volumes
from rljob_api.sizing import network
from rljob_api.sizing.devices import Gpu, smallest
from rljob_api.sizing.host import HostMemory, host_memory
from rljob_api.sizing.layout import wanted_servers
from rljob_api.sizing.memory import (
    CacheMemory,
    PhaseMemory,
    TrainerMemory,
    cache_memory,
    gang_memory,
    outside_tensors,
    phases,
    pool_cache,
    pool_weights,
    rollout_memory,
    trainer_memory,
)
from rljob_api.sizing.network import Cards, Flow
from rljob_api.sizing.replica import Arrival, RolloutHost, arrival, rollout_host
from rljob_api.sizing.server_arguments import not_counted
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import Speed, speed
from rljob_api.sizing.stage import operations, shares
from rljob_api.sizing.training import Machine
from rljob_api.sizing.volume import VolumeSpace, volume_space
from rljob_api.spec import RLJobSpec

NETWORK = "8x400g"
"""Cards of a node that seconds are modelled with, unless others are named."""
APART = (
    "metadata.",
    "spec.checkpoint.",
    "spec.data.sources[",
    "spec.data.train",
    "spec.data.validation",
    "spec.env[",
    "spec.envFrom[",
    "spec.image",
    "spec.lifecycle.",
    "spec.model.path",
    "spec.podSecurity.",
    "spec.scheduling.",
    "spec.volumes[",
)
"""Beginnings of fields that no size of the job depends on."""
NO_OTHERS: Mapping[str, Shape] = {}


@dataclass(frozen=True)
class Role:
    """Pods of one kind; `gpus` of all of them together."""

    name: str
    pods: int
    processes_per_pod: int
    gpus: int


@dataclass(frozen=True)
class Estimate:
    """Bytes on one GPU of a role, by what holds them."""

    role: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Stages:
    """Pipeline stages of the trainer's model."""

    layers: list[int]
    further: bool
    """The last one has the layer for multi-token prediction besides those of the model."""
    imbalance: float
    """What the busiest stage computes, of the mean of all. The others wait for it in every micro-batch."""

    @staticmethod
    def of(spec: RLJobSpec, shape: Shape) -> "Stages":
        work = operations(spec, shape)
        of_stages = shares(spec, shape)
        layers = [round(share.layers) for share in of_stages]
        return Stages(layers, of_stages[-1].further > 0, max(work) * len(work) / sum(work))


@dataclass(frozen=True)
class Plan:
    """A job as it would run. `spec` is None when it cannot be read as one."""

    name: str
    spec: RLJobSpec | None
    model: dict[str, Any] | None
    """The Hugging Face config.json, if it was given."""
    others: Mapping[str, Shape]
    """By role, of pools and of models on gangs of their own, as far as they were given."""
    violations: tuple[Violation, ...]
    taken: dict[str, Any]
    """Defaults of the cluster that are in the spec, by path."""
    unread: str
    """Why the cluster's could not be read."""
    device: Gpu | None
    """The GPU that it is held against, if one is known."""
    cards: Cards | None = None
    """The network cards of a node, if they were named."""

    @staticmethod
    def of(
        manifest: Manifest,
        model: dict[str, Any] | None,
        policy: JobPolicy,
        unread: str = "",
        device: Gpu | None = None,
        others: Mapping[str, Shape] = NO_OTHERS,
        adapters: dict[str, Any] | None = None,
        cards: Cards | None = None,
    ) -> "Plan":
        """`adapters`: the adapter_config.json of those to begin from, if it was given."""
        admitted = policy.admit(manifest.spec, manifest.name, model)
        unfit = beginning_violations(admitted.result.spec, model, adapters)
        violations = (*manifest.problems, *admitted.result.violations, *unfit)
        spec, taken = admitted.result.spec, admitted.taken
        return Plan(manifest.name, spec, model, others, violations, taken, unread, device, cards)

    def on_gpu_of(self, nodes: Iterable[Mapping[str, Any]]) -> "Plan":
        """Held against the smallest GPU of the nodes that its trainer pods may go to, where their labels say what they have."""
        if self.spec is None or self._counted() is None:
            return self
        wanted = self.spec.trainer.template.node_selector.items()
        labels = (node["metadata"].get("labels", {}) for node in nodes)
        return replace(self, device=smallest(own for own in labels if wanted <= own.items()))

    def breaks(self, field: str) -> bool:
        """Whether a rule about a field, or one below it, is broken."""
        return any(v.field.startswith(field) for v in self.violations)

    def stages(self) -> Stages | None:
        """Of a job with more than one, whose model is known, while its sizes are in order."""
        shape = self._shape()
        if shape is None or self.spec is None or self.spec.trainer.parallelism.pipeline == 1:
            return None
        return Stages.of(self.spec, shape)

    def memory(self) -> list[Estimate]:
        """Of a job on GPUs whose model is known, while its sizes are in order."""
        counted = self._counted()
        if counted is None:
            return []
        spec, shape = counted
        trainer = replace(trainer_memory(spec, shape), outside=outside_tensors(spec))
        estimates = [Estimate("trainer", asdict(trainer))]
        estimates += [Estimate(role, asdict(held)) for role, held in self._gangs().items()]
        if wanted_servers(spec):
            weights = spec.rollout.servers_per_gpu * rollout_memory(spec, shape).weights
            estimates.append(Estimate("rollout", {"weights": weights}))
        pools = [pool for pool in spec.asked_pools if pool.name in self.others]
        return estimates + [
            Estimate(pool.name, {"weights": pool_weights(pool, self.others[pool.name])}) for pool in pools
        ]

    def _gangs(self) -> dict[str, TrainerMemory]:
        """What a GPU of each other model's gang holds, by role, where the policy's model is known."""
        counted = self._counted()
        if counted is None:
            return {}
        spec, shape = counted
        return {role: gang_memory(spec, self.others.get(role, shape), role) for role in spec.gangs}

    def pool_caches(self) -> dict[str, float]:
        """By pool whose model is known, the bytes that a GPU of its server has for keys and values, where a GPU was named."""
        if self._counted() is None or self.spec is None or not self.device:
            return {}
        pools = [pool for pool in self.spec.asked_pools if pool.name in self.others]
        return {pool.name: pool_cache(pool, self.others[pool.name], self.device.bytes) for pool in pools}

    def phases(self) -> list[PhaseMemory]:
        """Of a trainer's GPU, where one was named and the model is known."""
        counted = self._counted()
        return phases(*counted, self.device.bytes) if counted and self.device else []

    def host(self) -> HostMemory | None:
        """Of a trainer pod, where the model is known."""
        counted = self._counted()
        return host_memory(*counted) if counted else None

    def cache(self) -> CacheMemory | None:
        """Of a server's GPU; `there` is 0 where none is known."""
        counted = self._served()
        if counted is None:
            return None
        memory = cache_memory(*counted, self.device.bytes if self.device else 0.0)
        return memory if self.device else replace(memory, there=0.0, tokens=0.0)

    def ways(self) -> ServerWays | None:
        """To cut a server's model over its GPUs, where there are several and the GPU and the model are known."""
        counted = self._served()
        if counted is None or not self.device or not self.model:
            return None
        return ways(*counted, self.model, self.device.bytes)

    def arrival(self) -> tuple[Arrival, RolloutHost] | None:
        """Where rollout pods keep the next policy, and what they hold in host memory, where the GPU and the model are known."""
        counted = self._served()
        if counted is None or counted[0].rollout.placement == "colocated" or not self.device:
            return None
        return arrival(*counted, self.device.bytes), rollout_host(*counted, self.device.bytes)

    def volume(self) -> VolumeSpace | None:
        """What checkpoints and exports take, where the model is known."""
        shape = self._shape()
        return volume_space(self.spec, shape) if shape and self.spec else None

    def traffic(self) -> dict[str, Flow]:
        """What generation, a sync of the servers and the hand-over of a batch send between nodes, where the model is known."""
        shape = self._shape()
        if shape is None or self.spec is None:
            return {}
        flows = {
            "generation": network.generation(self.spec, shape),
            "sync": network.sync(self.spec, shape),
            "batch": network.hand_over(self.spec, shape),
        }
        return {name: flow for name, flow in flows.items() if flow.sent}

    def speed(self) -> Speed | None:
        """Of a step, as `plan --suggest` models it, where the job fits, and the model and the GPU's rates are known. Without named cards, with those
        of NETWORK. None also of a service, whose steps are its clients', and of a job that only evaluates."""
        counted = self._counted()
        if counted is None or self.device is None or self.device.rates is None:
            return None
        spec, _ = counted
        if spec.task == "service" or spec.evaluation.only or self.misfits():
            return None
        machine = Machine(self.device.rates, self.device.bytes, self.cards or network.cards(NETWORK))
        return speed(*counted, machine)

    def outside(self) -> dict[str, str]:
        """Fields whose paths are on none of the job's volumes, and have to be in the image."""
        found = outside_volumes(self.spec) if self.spec else {}
        return {field: path for field, path in found.items() if field != CHECKPOINTS}

    def misfits(self) -> list[Violation]:
        """Why the job does not fit, as far as its model and GPU are known."""
        counted = self._counted()
        if counted is None:
            return []
        spec, shape = counted
        trainers = fitting.of_host("trainer", host_memory(spec, shape), spec.trainer.template)
        if not self.device:
            return [*trainers]
        arriving, cache = self.arrival(), self.cache()
        rollouts = fitting.of_host("rollout", arriving[1], spec.rollout.template) if arriving else ()
        return [
            *fitting.of_trainer(self.phases(), self.device, partial(remedy, spec, shape, self.device.bytes)),
            *fitting.of_gangs(spec, self._gangs(), self.device),
            *fitting.of_servers(spec, self._caches(), self.device),
            *(fitting.short_cache(spec, cache) if cache and not self.uncertain_room() else ()),
            *trainers,
            *rollouts,
        ]

    def doubts(self) -> list[str]:
        """What may not fit, while nothing is known not to."""
        counted = self._counted()
        if self.spec is None or not self.device or counted is None or self.misfits():
            return []
        find_remedy = partial(remedy, *counted, self.device.bytes)
        cache, why = self.cache(), self.uncertain_room()
        return [
            *fitting.doubts(self.spec, self.phases(), self._gangs(), self._caches(), self.device, find_remedy),
            *(fitting.doubtful_cache(self.spec, cache, why) if cache else ()),
        ]

    def advice(self) -> list[Violation]:
        """Values that are allowed and unusual."""
        return advised(self.spec) if self.spec else []

    def not_counted(self) -> dict[str, str]:
        """Arguments of servers whose memory is not in the estimates, and what of it."""
        if self.spec is None or not self.memory():
            return {}
        pools = {pool.name for pool in self.spec.asked_pools if pool.name in self.others}
        roles = [names.ROLE_ROLLOUT, *pools] if self._served() else [*pools]
        return {
            f"{self.spec.field_of(role)}.vllmArgs.{key}": what
            for role in roles
            for key, what in not_counted(fitting.arguments(self.spec, role)).items()
        }

    def uncertain_room(self) -> str:
        """Why rollout servers may have room for more tokens than are counted; empty: they have not."""
        return fitting.uncertain_room(self.spec, self.model) if self.spec and self.model else ""

    def _caches(self) -> dict[str, float]:
        """Bytes of a GPU that are left for keys and values, by role of the servers whose model is known."""
        cache = self.cache()
        return ({names.ROLE_ROLLOUT: cache.there} if cache else {}) | self.pool_caches()

    def _counted(self) -> tuple[RLJobSpec, Shape] | None:
        """The spec and the model that memory is estimated from; None when there is nothing to estimate."""
        shape = self._shape()
        if shape is None or self.spec is None or self.spec.trainer.device != "gpu":
            return None
        return self.spec, shape

    def _served(self) -> tuple[RLJobSpec, Shape] | None:
        """The same of a job with rollout servers."""
        counted = self._counted()
        return counted if counted and wanted_servers(counted[0]) else None

    def _shape(self) -> Shape | None:
        """Of the model, if it is known, and no rule is broken about what sizes depend on: so a job's misfits are said with what else is wrong."""
        sized = [v for v in self.violations if not v.field.startswith(APART)]
        return Shape.of(self.model) if self.model and not sized else None


def advised(spec: RLJobSpec) -> list[Violation]:
    """Values of a spec that are allowed and unusual."""
    return [*advice(spec), *unread(spec), *lost_checkpoints(spec)]


def roles(spec: RLJobSpec) -> list[Role]:
    """Trainer with its spares, gangs of other models, for tasks that generate rollout, and pools. A job on CPU takes no GPUs."""
    per_process = 1 if spec.trainer.device == "gpu" else 0
    processes = {role: spec.processes_of(role) for role in spec.pods}
    return [
        Role(role, count, processes[role], count * processes[role] * per_process)
        for role, count in spec.pod_counts.items()
    ]
