"""A vLLM server: its settings unless `vllmArgs` says otherwise, which servers are started with and plans use; what one of its GPUs holds, and what
its pods exchange while it generates.

Held: with t GPUs of tensor and p of pipeline parallelism, L/p layers (rounded up), of each 1/t of its matrices; its experts whole or in
slices, which is as much; with `speculation` also 1/t of what guesses. With p > 1 the first stage has the embedding, the last one the output layer.
Of d data-parallel copies each has all of that, but for experts, of which a GPU has 1/(t d).

Exchanged, for every token of prompts and responses, with h the hidden size and b the bytes of an activation:

    pipeline  2 b h to the next stage: hidden states and the residual, of which each tensor-parallel GPU sends its share (vLLM 0.32,
              distributed/parallel_state.py)
    tensor    two all-reduces of b h in each layer, of which a ring sends 2 (t-1)/t of their size from each GPU to the next
    copies    in each layer with experts b h to all GPUs that share these, and back the sum of what they computed (vLLM 0.32,
              distributed/device_communicators/all2all.py, AgRsAll2AllManager): a ring of n GPUs sends 2 (n-1)/n of b h from each to the next. It is
              one of n = t d GPUs with `expertParallel`, and t rings of n = d without

What a new policy takes on its way from the trainer to the servers, and where their workers keep it until it is applied.

A rank holds two buckets of what it sends, and a worker of a server two of what arrives, besides its own shard of the model. A server that serves a
policy must be able to keep it until the next one is complete and verified, so its workers load that one into a second copy of their shards:

    gpu       where the GPU has room next to the cache: applied at the speed of its memory
    host      in host memory: applied at the speed of the bus
    in place  over the shard itself, where there is no room, and on servers that serve nothing, as colocated ones do that were asleep. Such a server
              generates nothing meanwhile, and if the update fails, nothing until the next one.

Adapters that are sent alone (`model.lora.sync: adapters`) always wait in host memory: they need no second copy of the model.
"""

from dataclasses import dataclass
from typing import Any, Literal

from rljob_api.family import DeviceType
from rljob_api.sizing import guessing
from rljob_api.sizing.layout import servers_per_pod
from rljob_api.sizing.server_arguments import layer_bytes
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LoraSpec
from rljob_api.spec.processes import Servers
from rljob_api.spec.roles import PoolSpec, RolloutSpec


def layers(servers: Servers, shape: Shape) -> int:
    """Of the stage that has most."""
    return -(-shape.layers // servers.pipeline_parallel)


def weights(servers: RolloutSpec | PoolSpec, shape: Shape, width: float) -> float:
    """Bytes on the GPU that has most, `width` for a parameter that is not quantized, without those that vLLM reads from host memory."""
    return max(0.0, of_worker(servers, shape, width) - float(servers.vllm_args.get("cpu-offload-gb") or 0) * 2**30)


def of_worker(servers: RolloutSpec | PoolSpec, shape: Shape, width: float) -> float:
    """Bytes of the weights of the worker that has most, wherever they are."""
    of_layers, outside = parameters(servers, shape)
    guesses = guessing.of_server(servers, shape) if isinstance(servers, RolloutSpec) else 0.0
    return of_layers * layer_bytes(servers.vllm_args, width) + (outside + guesses / servers.tensor_parallel) * width


def parameters(servers: Servers, shape: Shape) -> tuple[float, float]:
    """Those of layers and all others, on the GPU that has most."""
    own, t, copies = layers(servers, shape), servers.tensor_parallel, servers.data_parallel
    of_layers = shape.layers * (shape.dense + shape.expert)
    outside = shape.parameters - of_layers
    if servers.pipeline_parallel > 1 and not shape.tied:
        outside -= shape.embedding
    return own * (shape.dense + shape.expert / copies) / t, outside / t


def on_ranks(shape: Shape, tensor: int, count: int) -> float:
    """Share of a layer outside its experts that `count` of a server's tensor-parallel GPUs have together. Each has all of the router, and of what
    makes the vectors of latent attention; keys and values of a head are on several where there are more GPUs than heads."""
    whole = shape.hidden * shape.experts * (shape.layers - shape.dense_layers) / shape.layers
    keys_and_values = 0.0
    if shape.latent:
        whole += shape.hidden * (shape.latent.query + shape.latent.key_value + shape.latent.rotated)
    else:
        keys_and_values = 2 * shape.hidden * shape.head * shape.groups * shape.attending
    divided = shape.dense - whole - keys_and_values
    heads = -(-count * shape.groups // tensor) / shape.groups
    return (divided * count / tensor + whole + keys_and_values * heads) / shape.dense


def sent_per_token(servers: Servers, shape: Shape, width: int) -> tuple[float, float]:
    """Bytes out of one pod of a server for each token that the server handles, and those of them that one GPU sends. `width`: bytes of an
    activation."""
    activation = float(width * shape.hidden)
    if servers.nodes == 1:
        return 0.0, 0.0
    if servers.data_parallel > 1:
        rings, ring = _exchanged(servers, shape, activation)
        return rings * ring, ring
    pod, t = servers.processes_per_pod, servers.tensor_parallel
    staged = 2 * activation if servers.pipeline_parallel > 1 else 0.0
    ring = 4 * activation * (t - 1) / t * layers(servers, shape) if t > pod else 0.0
    return staged + ring, staged / min(t, pod) + ring


def _exchanged(servers: Servers, shape: Shape, activation: float) -> tuple[int, float]:
    """Of data-parallel copies: the rings that leave a pod, and the bytes of each for a token of the server."""
    mixed, t = shape.layers - shape.dense_layers if shape.experts else 0, servers.tensor_parallel
    rings, members = (1, servers.gpus) if servers.expert_parallel else (t, servers.data_parallel)
    return rings, 2 * activation * (members - 1) / members * mixed


SEQUENCES: dict[DeviceType, int] = {"cpu": 256, "gpu": 1024}
"""Responses that one server generates at a time, at most; that one data-parallel copy does, where it has several."""
COLOCATED_SHARE = 0.5
"""Share of a GPU's memory that the colocated servers there have while they generate, each an equal part of it."""
SERVER_SHARE = 0.92
"""Share of a GPU's memory that a server in a pod of its own has: vLLM's default."""
CPU_KV_CACHE_BYTES = 256 * 2**20
"""Bytes for keys and values of a server on CPU."""


def server_defaults(spec: RLJobSpec) -> dict[str, Any]:
    """vLLM's arguments that bound a server's memory."""
    defaults: dict[str, Any] = {"max-num-seqs": SEQUENCES[spec.trainer.device]}
    if spec.trainer.device == "cpu":
        return defaults | {"kv-cache-memory-bytes": CPU_KV_CACHE_BYTES}
    share = COLOCATED_SHARE / spec.rollout.servers_per_gpu
    return defaults | ({"gpu-memory-utilization": share} if spec.rollout.placement == "colocated" else {})


def with_one_server_per_gpu(spec: RLJobSpec) -> RLJobSpec:
    """With one server in place of those that share a GPU, which generates as many responses at a time, and has as large a cache, as they together."""
    together, given = spec.rollout.servers_per_gpu, server_defaults(spec) | spec.rollout.vllm_args
    if together == 1:
        return spec
    of_all = {key: together * given[key] for key in ("max-num-seqs", "kv-cache-memory-bytes") if given.get(key)}
    rollout = spec.rollout.model_copy(update={"servers_per_gpu": 1, "vllm_args": spec.rollout.vllm_args | of_all})
    return spec.model_copy(update={"rollout": rollout})


def longest_context(spec: RLJobSpec) -> int:
    """Tokens of the longest prompt and response, in training and evaluation as far as the job has them: a server's max-model-len."""
    if spec.task == "service":
        return spec.service.max_tokens
    sets = spec.evaluation_sets if spec.evaluation.takes_place else []
    evaluation = [s.sampling.max_tokens for s in sets if s.sampling and not spec.rollout.agent]
    training = [] if spec.evaluation.only and evaluation else [spec.longest_response]
    return spec.data.max_prompt_tokens + max([*training, *evaluation])


def sequences(spec: RLJobSpec) -> int:
    """Responses that one server generates at a time, in all data-parallel copies."""
    return int((server_defaults(spec) | spec.rollout.vllm_args)["max-num-seqs"]) * spec.rollout.data_parallel


Where = Literal["gpu", "host", "in place"]

CPU_BUCKET, GPU_BUCKET, COLOCATED_BUCKET = 64 * 2**20, 2**30, 512 * 2**20
"""Bytes of a bucket. On GPUs buckets are large, because messages take longer than transfers."""
BUCKETS = 2
"""That each end of a transfer holds."""
GPU_ROOM, HOST_ROOM = 2**30, 4 * 2**30
"""Bytes that a copy leaves free."""


@dataclass(frozen=True, slots=True)
class FreeBytes:
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
    snapshots: float = 0.0
    """Of adapters of a service's clients."""

    @property
    def total(self) -> float:
        return self.arriving + self.snapshots + self.offloaded


def where(shard: float, room: FreeBytes) -> Where:
    """`shard`: bytes of a worker's parameters."""
    if shard + GPU_ROOM <= room.gpu:
        return "gpu"
    return "host" if shard + HOST_ROOM <= room.host else "in place"


def arrival(spec: RLJobSpec, shape: Shape, device: float) -> Arrival:
    """By what a GPU of `device` bytes has outside vLLM's share of it, and by limits.memory of a rollout pod, where there is one. Raises ValueError
    for a limit that is no quantity."""
    if serves_snapshots(spec):
        return Arrival("host", 0.0)
    if spec.model.lora and spec.model.lora.sync == "adapters":
        return Arrival("host", _adapters(spec, shape, spec.model.lora))
    workers, given = spec.rollout.processes_per_pod, server_defaults(spec) | spec.rollout.vllm_args
    shard = of_worker(spec.rollout, shape, BYTES[spec.model.dtype])
    outside = device * (1 - float(given.get("gpu-memory-utilization", SERVER_SHARE)))
    limit = spec.rollout.template.memory_limit
    host = limit - _offloaded(spec) if limit else float("inf")
    place = where(shard, FreeBytes(outside - buckets(spec, shape), host / workers))
    return Arrival(place, 0.0 if place == "in place" else shard * workers)


def rollout_host(spec: RLJobSpec, shape: Shape, device: float) -> RolloutHost:
    """Of a pod of a server that has pods of its own. Raises ValueError as `arrival` does."""
    arriving = arrival(spec, shape, device)
    copies = arriving.copies if arriving.where == "host" else 0.0
    snapshots = 0.0
    if spec.adapters and serves_snapshots(spec):
        snapshots = spec.service.max_snapshots * _adapters(spec, shape, spec.adapters)
    return RolloutHost(copies, _offloaded(spec), snapshots)


def serves_snapshots(spec: RLJobSpec) -> bool:
    """Whether servers read adapters of a service's clients from its volume, and no policy is sent to them."""
    return spec.task == "service" and spec.adapters is not None


def _adapters(spec: RLJobSpec, shape: Shape, lora: LoraSpec) -> float:
    """Bytes on all workers of a pod, each of which keeps all adapters."""
    adapters = shape.layers * shape.adapters(lora)
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
    """Bytes of buckets on a trainer's GPU while a policy is sent: those of a sender, and those of the worker of each colocated server there."""
    if spec.supervised or serves_snapshots(spec):
        return 0.0
    receiving = spec.rollout.servers_per_gpu if spec.rollout.placement == "colocated" else 0
    return (1 + receiving) * buckets(spec, shape)
