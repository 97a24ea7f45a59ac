"""What one GPU of a vLLM server holds, and what the pods of one exchange while it generates.

Held: with t, p, d GPUs of tensor, pipeline and data parallelism, L/p layers (rounded up), of each 1/t of its matrices; of its experts 1/(t d), which
expert parallelism gives whole and tensor parallelism in slices. With p > 1 the first stage has the embedding, the last one the output layer.

Exchanged, for every token of prompts and responses, with h the hidden size and b the bytes of an activation:

    pipeline  2 b h to the next stage: hidden states and the residual, of which each tensor-parallel GPU sends its share (vLLM 0.32,
              distributed/parallel_state.py)
    tensor    two all-reduces of b h in each layer, of which a ring sends 2 (t-1)/t of their size from each GPU to the next
    experts   b h gathered before the experts of a layer, and as much summed up behind them: a pod of n sends all but its own share to others
              (vLLM 0.32's default, `allgather_reducescatter`)
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
    return (own * shape.dense + outside) / t + own * shape.expert / (t * servers.data_parallel)


def sent_per_token(servers: Servers, shape: Shape, width: int) -> tuple[float, float]:
    """Bytes out of one pod of a server for each token that the server handles, and those of them that one GPU sends. `width`: bytes of an
    activation."""
    activation = float(width * shape.hidden)
    pod, t, p, d = servers.processes_per_pod, servers.tensor_parallel, servers.pipeline_parallel, servers.data_parallel
    if servers.nodes == 1:
        return 0.0, 0.0
    copy = t * p
    staged = 2 * activation / d if p > 1 and copy > pod else 0.0
    ring = 4 * activation * (t - 1) / t * layers(servers, shape) / d if t > pod else 0.0
    mixed = shape.layers - shape.dense_layers if shape.experts else 0
    gathered = 2 * activation * mixed / p * (servers.nodes - 1) / servers.nodes if d > 1 else 0.0
    return staged + ring + gathered, staged / min(t, pod) + ring + gathered / pod
