"""What a new policy takes on its way from the trainer to the servers, and where their workers keep it until it is applied.

A rank holds two buckets of what it sends, and a worker of a server two of what arrives, besides its own shard of the model. A server that serves a
policy must be able to keep it until the next one is complete and verified, so its workers load that one into a second copy of their shards:

    gpu       where the GPU has room next to the cache: applied at the speed of its memory
    host      in host memory: applied at the speed of the bus
    in place  over the shard itself, where there is no room, and on servers that serve nothing, as colocated ones do that were asleep. Such a server
              generates nothing meanwhile, and if the update fails, nothing until the next one.

Adapters that are sent alone (`model.lora.sync: adapters`) always wait in host memory: they need no second copy of the model.
"""

from dataclasses import dataclass
from typing import Literal

from rljob_api.sizing.layout import servers_per_pod
from rljob_api.sizing.limits import memory_limit
from rljob_api.sizing.replica import SERVER_SHARE, parameters, server_defaults
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec

Where = Literal["gpu", "host", "in place"]

CPU_BUCKET, GPU_BUCKET, COLOCATED_BUCKET = 64 * 2**20, 2**30, 512 * 2**20
"""Bytes of a bucket. On GPUs buckets are large, because messages take longer than transfers."""
BUCKETS = 2
"""That each end of a transfer holds."""
GPU_ROOM, HOST_ROOM = 2**30, 4 * 2**30
"""Bytes that a copy leaves free."""


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes for one worker's copy."""

    gpu: float
    host: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where the workers of a rollout server in a pod of its own keep the next policy."""

    where: Where
    copies: float
    """Bytes of the copies of all workers in a pod, in the memory that `where` names."""


@dataclass(frozen=True, slots=True)
class RolloutHost:
    """Bytes of host memory in a rollout pod."""

    arriving: float
    """Of the next policy, until it is applied."""
    offloaded: float
    """Of weights that vLLM reads from there at every step (`cpu-offload-gb`)."""

    @property
    def total(self) -> float:
        return self.arriving + self.offloaded


def where(shard: float, room: Room) -> Where:
    """`shard`: bytes of a worker's parameters."""
    if shard + GPU_ROOM <= room.gpu:
        return "gpu"
    return "host" if shard + HOST_ROOM <= room.host else "in place"


def arrival(spec: RLJobSpec, shape: Shape, device: float) -> Arrival:
    """By what a GPU of `device` bytes has outside vLLM's share of it, and by limits.memory of a rollout pod, where there is one. Raises ValueError
    for a limit that is no quantity."""
    if spec.model.lora and spec.model.lora.sync == "adapters":
        return Arrival("host", _adapters(spec, shape))
    workers, given = spec.rollout.processes_per_pod, server_defaults(spec) | spec.rollout.vllm_args
    shard = BYTES[spec.model.dtype] * parameters(spec.rollout, shape)
    outside = device * (1 - float(given.get("gpu-memory-utilization", SERVER_SHARE)))
    limit = memory_limit(spec.rollout.template)
    host = limit - _offloaded(spec) if limit else float("inf")
    place = where(shard, Room(outside - buckets(spec, shape), host / workers))
    return Arrival(place, 0.0 if place == "in place" else shard * workers)


def rollout_host(spec: RLJobSpec, shape: Shape, device: float) -> RolloutHost:
    """Of a pod of a server that has pods of its own. Raises ValueError as `arrival` does."""
    found = arrival(spec, shape, device)
    return RolloutHost(found.copies if found.where == "host" else 0.0, _offloaded(spec))


def _adapters(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes on all workers of a pod, each of which keeps all adapters."""
    assert spec.model.lora
    adapters = shape.layers * shape.adapters(spec.model.lora)
    return float(BYTES[spec.model.dtype] * adapters * spec.rollout.processes_per_pod)


def _offloaded(spec: RLJobSpec) -> float:
    """On all workers of a pod."""
    return float(spec.rollout.vllm_args.get("cpu-offload-gb") or 0) * 2**30 * spec.rollout.processes_per_pod


def buckets(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of the buckets that one end of a transfer holds. A tensor that is larger than a bucket, such as the embedding, has one of its own."""
    largest = BYTES[spec.model.dtype] * shape.vocabulary * shape.hidden
    return float(BUCKETS * max(bucket(spec), largest))


def bucket(spec: RLJobSpec) -> int:
    """Bytes of a bucket."""
    if spec.trainer.device == "cpu":
        return CPU_BUCKET
    return COLOCATED_BUCKET if servers_per_pod(spec) else GPU_BUCKET


def in_transfer(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of buckets on a trainer's GPU while a policy is sent: those of a sender, and those of a colocated server's worker."""
    if spec.supervised:
        return 0.0
    ends = 2 if spec.rollout.placement == "colocated" else 1
    return ends * buckets(spec, shape)
