"""Puts the tensors of an update into vLLM's model: over those that it computes with, or through its layer-wise reload.

The first works unless something makes others of them after loading (vLLM 0.26, model_executor/model_loader/utils.py,
`process_weights_after_loading`): quantization methods, attention and a few more modules. For those its layer-wise reload is the way, which takes
five times as long (H200, 338 tensors of 3.1 GB: 73 ms, 13 ms in place). It collects what the loaders of parameters get: a model that writes into its
parameters directly (gpt-oss) can be updated in place only.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionImplBase

KEEPING = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""They pack weights for CPUs and leave them alone elsewhere."""
UNQUANTIZED = (*KEEPING, UnquantizedFusedMoEMethod)
"""All parameters of their layers are in the files."""
KEEPING_EXPERTS = (UnquantizedMoeBackend.TRITON, UnquantizedMoeBackend.BATCHED_TRITON)
"""Kernels that take the weights of experts in the order of the files. Others have them swapped or shuffled."""

FIX = "remove rollout.vllmArgs.quantization if the job sets it, or take a family that docs/models.md says servers update on this device"


class LostUpdateError(RuntimeError):
    """Tensors of an update did not reach the parameters."""


def load(model: Module, config: Any, tensors: Iterator[tuple[str, Tensor]], in_place: bool) -> None:
    """`in_place`: what `computes_with_what_it_loads` says of the model. `config`: vLLM's ModelConfig.

    Raises LostUpdateError, with the model unfit to serve.
    """
    loaded: Any = model
    if in_place:
        loaded.load_weights(tensors)
        return
    initialize_layerwise_reload(model)
    loaded.load_weights(tensors)
    if lost := _lost(model):
        what = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        raise LostUpdateError(f"vLLM's layer-wise reload of {type(model).__name__} does not reach {what}: {FIX}")
    finalize_layerwise_reload(model, config)
    if current_platform.is_cpu():
        _repack_embeddings(model)


def _lost(model: Module) -> list[str]:
    """Parameters that nothing was loaded into, of which vLLM at most warns. Those that share the memory of a loaded one are loaded.

    A layer waits for the end although its tensors came when they are fewer than its elements: an embedding with padded rows.
    """
    waiting = [(name, layer) for name, layer in model.named_modules() if get_layerwise_info(layer).kernel_tensors]
    reached = {p.data_ptr() for p in model.parameters() if p.numel() and not p.is_meta}
    for _, layer in waiting:
        reached |= {tensor.data_ptr() for key, tensor in _own(layer).items() if tensor.numel() and key in _came(layer)}
    return [
        f"{name}.{key}"
        for name, layer in waiting
        for key, tensor in _awaited(layer).items()
        if not tensor.numel() or tensor.data_ptr() not in reached
    ]


def _own(layer: Module) -> dict[str, Tensor]:
    """What a layer with a reload under way computes with and loads. Parameters that vLLM makes of others afterwards are not loaded. Those that it
    has packed elsewhere are empty."""
    info = get_layerwise_info(layer)
    assert info.kernel_tensors
    loads = {name for name, tensor in info.restore_metadata[0].items() if tensor.numel()}
    return {name: tensor for name, tensor in info.kernel_tensors[0].items() if name in loads}


def _came(layer: Module) -> set[str]:
    return {name for name, _ in get_layerwise_info(layer).loaded_weights}


def _awaited(layer: Module) -> dict[str, Tensor]:
    """What a layer needs and did not get. A quantization method may have scales that no file has: a layer with one needs some tensor."""
    came, method = _came(layer), getattr(layer, "quant_method", None)
    if came and isinstance(method, QuantizeMethodBase) and type(method) not in UNQUANTIZED:
        return {}
    return {name: tensor for name, tensor in _own(layer).items() if name not in came}


def computes_with_what_it_loads(model: Module) -> bool:
    """Of vLLM's model, on the platform that it runs on."""
    return not current_platform.is_cpu() and all(map(_keeps_its_weights, model.modules()))


def _keeps_its_weights(module: Module) -> bool:
    if isinstance(module, QuantizeMethodBase):
        return True  # that of experts is a module, too: it is judged with the layer that has it
    method: Any = getattr(module, "quant_method", None)
    if type(method) is UnquantizedFusedMoEMethod:
        return method.unquantized_backend in KEEPING_EXPERTS
    if isinstance(method, QuantizeMethodBase) and type(method) not in KEEPING:
        return False
    if type(module) is Attention:  # has scales of its own, no weights; its implementation may
        implementation: Any = type(module.impl)
        own = implementation.process_weights_after_loading
        return bool(own is AttentionImplBase.process_weights_after_loading)
    return not hasattr(module, "process_weights_after_loading")


def _repack_embeddings(model: Module) -> None:
    """vLLM on CPU keeps a packed copy of an output layer's weights. One that only shares its weight with the embedding (Llama's) gets no
    tensor of its own on reload, and vLLM 0.26 then leaves the packed copy of the old weights: log-probabilities of no policy at all."""
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
