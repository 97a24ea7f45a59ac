"""What one GPU of a vLLM server holds, and what the pods of one exchange while it generates.

Held: with t GPUs of tensor and p of pipeline parallelism, L/p layers (rounded up), of each 1/t of its matrices; its experts whole or in
slices, which is as much. With p > 1 the first stage has the embedding, the last one the output layer.

Exchanged, for every token of prompts and responses, with h the hidden size and b the bytes of an activation:

    pipeline  2 b h to the next stage: hidden states and the residual, of which each tensor-parallel GPU sends its share (vLLM 0.32,
              distributed/parallel_state.py)
    tensor    two all-reduces of b h in each layer, of which a ring sends 2 (t-1)/t of their size from each GPU to the next
"""

from rljob_api.sizing.shape import Shape
from rljob_api.spec.servers import Servers


def layers(servers: Servers, shape: Shape) -> int:
    """Of the stage that has most."""
    return -(-shape.layers // servers.pipeline_parallel)


def parameters(servers: Servers, shape: Shape) -> float:
    """On the GPU that has most."""
    own, t = layers(servers, shape), servers.tensor_parallel
    of_layers = shape.layers * (shape.dense + shape.expert)
    outside = shape.parameters - of_layers
    if servers.pipeline_parallel > 1 and not shape.tied:
        outside -= shape.embedding
    return (own * (shape.dense + shape.expert) + outside) / t


def sent_per_token(servers: Servers, shape: Shape, width: int) -> tuple[float, float]:
    """Bytes out of one pod of a server for each token that the server handles, and those of them that one GPU sends. `width`: bytes of an
    activation."""
    activation = float(width * shape.hidden)
    if servers.nodes == 1:
        return 0.0, 0.0
    pod, t = servers.processes_per_pod, servers.tensor_parallel
    staged = 2 * activation if servers.pipeline_parallel > 1 else 0.0
    ring = 4 * activation * (t - 1) / t * layers(servers, shape) if t > pod else 0.0
    return staged + ring, staged / min(t, pod) + ring
