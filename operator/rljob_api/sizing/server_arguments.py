"""What vLLM's arguments (`vllmArgs`) change of a server's memory: how many bytes the numbers of weights and of the cache have, and which arguments
estimates do not count."""

from collections.abc import Mapping
from typing import Any

CACHE, SHARE = "kv-cache-memory-bytes", "gpu-memory-utilization"
"""The two that say how much of a GPU a server takes."""
LAYER_BYTES = {
    **dict.fromkeys(("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only"), 1.0),
    "mxfp8": 1 + 1 / 32,
    "nvfp4_per_token": 1 / 2 + 1 / 16,
}
"""By `quantization`, bytes of a parameter in a layer, with its share of scales. Embeddings and the output layer keep their type."""
CACHE_BYTES = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), 1.0),
    **dict.fromkeys(("float16", "bfloat16"), 2.0),
}
"""By `kv-cache-dtype`, bytes of a number in the cache."""
COUNTED = (
    "cpu-offload-gb",
    "dtype",
    SHARE,
    "kv-cache-dtype",
    CACHE,
    "max-num-seqs",
    "quantization",
)
"""Arguments that estimates follow."""

_ACTIVATIONS = "activations of a pass, which come out of vLLM's share"
_GRAPHS = "captured graphs, which are in vLLM's share"
_IMAGES = "images, and the activations of their encoder"
_ON_HOST = "weights in host memory"
_STATES = "states of layers without attention"
NOT_COUNTED: Mapping[str, str] = {
    **dict.fromkeys(("max-num-batched-tokens", "max-num-active-seqs", "enable-dbo", "ubatch-size"), _ACTIVATIONS),
    **dict.fromkeys(
        ("enforce-eager", "compilation-config", "cudagraph-capture-sizes", "max-cudagraph-capture-size"), _GRAPHS
    ),
    **dict.fromkeys(
        (
            "limit-mm-per-prompt",
            "mm-encoder-only",
            "mm-encoder-tp-mode",
            "mm-ipc-gpu-memory-gb",
            "mm-processor-cache-gb",
            "skip-mm-profiling",
        ),
        _IMAGES,
    ),
    **dict.fromkeys(
        (
            "cpu-offload-params",
            "offload-backend",
            "offload-group-size",
            "offload-num-in-group",
            "offload-params",
            "offload-prefetch-step",
        ),
        _ON_HOST,
    ),
    **dict.fromkeys(
        (
            "mamba-block-size",
            "mamba-cache-dtype",
            "mamba-cache-mode",
            "mamba-ssm-cache-dtype",
            "replayssm-buffer-len",
        ),
        _STATES,
    ),
    **dict.fromkeys(("hf-overrides", "model-class-overrides"), "another model than config.json describes"),
    "decode-context-parallel-size": "a cache that is divided over the GPUs of a copy",
    "kv-cache-dtype-skip-layers": "layers whose cache has another type",
    "kv-offloading-size": "keys and values in host memory",
    "num-gpu-blocks-override": "a cache of another size than fits",
    "quantization-config": "single layers that are quantized in another way",
    "sleep-mode-offload-cudagraph": _GRAPHS,
}
"""Arguments that change memory and that no estimate follows: what of it."""
SMALLER_WEIGHTS = ("quantization", "quantization-config", "hf-overrides", "model-class-overrides", "offload-group-size")
"""Arguments by which fewer bytes of weights may be on a GPU than are counted, if they are not counted."""

LARGER_CACHE = (
    *("cpu-offload-params", "offload-backend", "offload-num-in-group", "offload-params", "offload-prefetch-step"),
    *("decode-context-parallel-size", "kv-cache-dtype", "kv-cache-dtype-skip-layers", "num-gpu-blocks-override"),
)
"""Further arguments by which a server may have room for more tokens than are counted, if they are not counted."""


def layer_bytes(given: Mapping[str, Any], width: float) -> float:
    """Bytes of a parameter in a layer, `width` where it is not quantized, or in a way that is not counted."""
    return min(width, LAYER_BYTES.get(str(given.get("quantization")), width))


def cache_bytes(given: Mapping[str, Any], width: float) -> float:
    """Bytes of a number in the cache, `width` where it has the model's type or one that is not counted."""
    return CACHE_BYTES.get(str(given.get("kv-cache-dtype")), width)


def not_counted(given: Mapping[str, Any]) -> dict[str, str]:
    """The arguments whose memory no estimate follows, and what of it."""
    uncounted = {key: what for key, what in NOT_COUNTED.items() if given.get(key) is not None}
    if given.get("quantization") is not None and given["quantization"] not in LAYER_BYTES:
        uncounted["quantization"] = (
            f"weights in {given['quantization']}: they are counted as if they were not quantized"
        )
    if given.get("kv-cache-dtype") not in (None, "auto", *CACHE_BYTES):
        uncounted["kv-cache-dtype"] = f"a cache in {given['kv-cache-dtype']}: it is counted in the model's type"
    return uncounted


def may_be_smaller(given: Mapping[str, Any]) -> list[str]:
    """Arguments of `given` by which a GPU may hold fewer bytes of weights than are counted."""
    return [key for key in SMALLER_WEIGHTS if key in not_counted(given)]


def may_have_room(given: Mapping[str, Any]) -> list[str]:
    """Arguments of `given` by which a server may have room for more tokens than are counted."""
    return [key for key in (*SMALLER_WEIGHTS, *LARGER_CACHE) if key in not_counted(given)]
