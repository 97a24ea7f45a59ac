"""A vLLM server: its settings unless `vllmArgs` says otherwise, which servers are started with and plans use; what one of its GPUs holds, and what
its pods exchange while it generates.

Held: with t GPUs of tensor and p of pipeline parallelism, L/p layers (rounded up), of each 1/t of its matrices; its experts whole or in
slices, which is as much. With p > 1 the first stage has the embedding, the last one the output layer. Of d data-parallel copies each has all of that,
but for experts, of which a GPU has 1/(t d).

Exchanged, for every token of prompts and responses, with h the hidden size and b the bytes of an activation:

    pipeline  2 b h to the next stage: hidden states and the residual, of which each tensor-parallel GPU sends its share (vLLM 0.32,
              distributed/parallel_state.py)
    tensor    two all-reduces of b h in each layer, of which a ring sends 2 (t-1)/t of their size from each GPU to the next
    copies    in each layer with experts b h to all GPUs that share these, and back the sum of what they computed (vLLM 0.32,
              distributed/device_communicators/all2all.py, AgRsAll2AllManager): a ring of n GPUs sends 2 (n-1)/n of b h from each to the next. It is
              one of n = t d GPUs with `expertParallel`, and t rings of n = d without
"""

from typing import Any

from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Device
from rljob_api.spec.servers import Servers


def layers(servers: Servers, shape: Shape) -> int:
    """Of the stage that has most."""
    return -(-shape.layers // servers.pipeline_parallel)


def parameters(servers: Servers, shape: Shape) -> float:
    """On the GPU that has most."""
    own, t, copies = layers(servers, shape), servers.tensor_parallel, servers.data_parallel
    of_layers = shape.layers * (shape.dense + shape.expert)
    outside = shape.parameters - of_layers
    if servers.pipeline_parallel > 1 and not shape.tied:
        outside -= shape.embedding
    return (own * (shape.dense + shape.expert / copies) + outside) / t


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


SEQUENCES: dict[Device, int] = {"cpu": 256, "gpu": 1024}
"""Responses that one server generates at a time, at most; that one data-parallel copy does, where it has several."""
COLOCATED_SHARE = 0.5
"""Share of a GPU's memory that a colocated server has while it generates."""
SERVER_SHARE = 0.92
"""Share of a GPU's memory that a server in a pod of its own has: vLLM's default."""
CPU_KV_CACHE_BYTES = 256 * 2**20
"""Bytes for keys and values of a server on CPU."""


def server_defaults(spec: RLJobSpec) -> dict[str, Any]:
    """vLLM's arguments that bound a server's memory."""
    found: dict[str, Any] = {"max-num-seqs": SEQUENCES[spec.trainer.device]}
    if spec.trainer.device == "cpu":
        return found | {"kv-cache-memory-bytes": CPU_KV_CACHE_BYTES}
    return found | ({"gpu-memory-utilization": COLOCATED_SHARE} if spec.rollout.placement == "colocated" else {})


def longest_context(spec: RLJobSpec) -> int:
    """Tokens of the longest prompt and response, in training and, if there is any, evaluation: a server's max-model-len."""
    if spec.task == "service":
        return spec.service.max_tokens
    sets = spec.evaluation_sets if spec.evaluation.takes_place else []
    evaluation = [s.sampling.max_tokens for s in sets if s.sampling and not spec.rollout.agent]
    return spec.data.max_prompt_tokens + max(spec.longest_response, *evaluation, 0)


def sequences(spec: RLJobSpec) -> int:
    """Responses that one server generates at a time, in all data-parallel copies."""
    return int((server_defaults(spec) | spec.rollout.vllm_args)["max-num-seqs"]) * spec.rollout.data_parallel
