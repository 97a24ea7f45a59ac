"""What a GPU of a pool's server has to hold."""

from rljob_api.sizing.serving import SERVER_SHARE
from rljob_api.sizing.shape import Shape
from rljob_api.spec.roles import PoolSpec


def pool_weights(pool: PoolSpec, shape: Shape) -> float:
    """Bytes on one GPU of a pool's server, at most: vLLM loads parameters of 2 bytes unless `dtype` is float32, and smaller ones are not counted."""
    width = 4 if pool.vllm_args.get("dtype") in ("float", "float32") else 2
    return width * shape.parameters / pool.tensor_parallel


def pool_cache(pool: PoolSpec, shape: Shape, device: float) -> float:
    """Bytes for keys and values on one GPU of `device` bytes, at most: vLLM's share without the weights. Negative where these do not fit."""
    if given := pool.vllm_args.get("kv-cache-memory-bytes"):
        return float(given)
    share = float(pool.vllm_args.get("gpu-memory-utilization", SERVER_SHARE))
    return device * share - pool_weights(pool, shape)
