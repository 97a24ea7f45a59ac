"""Loads the tensors of an update into the model that serves: over its parameters, or through vLLM's layer-wise reload.

Over them works unless weights are transformed after loading (vLLM 0.32, model_executor/model_loader/utils.py, `process_weights_after_loading`), as
quantization methods, attention and a few other modules do. Those need the layer-wise reload, which takes five times as long (H200, 338 tensors of
3.1 GB: 73 ms, in place 13 ms). It intercepts the weight loaders of parameters, so a model that writes into its parameters directly (gpt-oss) can only
be updated in place.
"""

from collections.abc import Iterable
from functools import partial
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
from vllm.model_executor.model_loader.reload.layerwise import _place_kernel_tensors, get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS, SKIP_TENSORS
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionImplBase

KEEPING = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""These transform weights on CPUs only."""
UNQUANTIZED = (*KEEPING, UnquantizedFusedMoEMethod)
"""All parameters of layers with these are in the model files."""
KEEPING_EXPERTS = (UnquantizedMoeBackend.TRITON, UnquantizedMoeBackend.BATCHED_TRITON)
"""Kernels that use experts' weights in the order of the model files. Others need them swapped or shuffled."""
KEPT = SKIP_TENSORS - SKIP_LOAD_TENSORS
"""Names of parameters that a layer-wise reload loads where they are, and has no record of."""

FIX = "remove rollout.vllmArgs.quantization if the job sets it, or take a family that docs/models.md says servers update on this device"


class LostUpdateError(RuntimeError):
    """Tensors of an update did not reach the parameters."""


class InPlace:
    """Puts an update into the model that serves, as it arrives. A server that serves nothing needs no copy of its parameters (shadow.py)."""

    def __init__(self, model: Module, config: Any, keeps: bool) -> None:
        """`config`: vLLM's ModelConfig. `keeps`: the result of `computes_with_what_it_loads` for the model."""
        self._model: Any = model
        self._config, self._keeps = config, keeps
        self._reloading = False

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load some tensors of an update. vLLM keeps those of a layer until it has all of them, so it gets copies."""
        if self._keeps:
            self._model.load_weights(iter(tensors))
        else:
            if not self._reloading:
                begin_reload(self._model)
                self._reloading = True
            self._model.load_weights((name, tensor.clone()) for name, tensor in tensors)

    def check(self) -> None:
        """Called after all tensors. Raises LostUpdateError when some did not reach the model."""
        lost = [] if self._keeps else _lost(self._model)
        if lost:
            raise LostUpdateError(lost_sentence(self._model, lost))

    def apply(self) -> None:
        """Complete the update."""
        if not self._keeps:
            finalize_layerwise_reload(self._model, self._config)
            self._reloading = False
            if current_platform.is_cpu():
                repack_embeddings(self._model)

    def abandon(self) -> None:
        """Leave the model as it is, a mixture that must not serve, but ready for the next update."""
        self._reloading = False
        for layer in self._model.modules():
            info = get_layerwise_info(layer)
            if info.can_load() and info.kernel_tensors:
                _place_kernel_tensors(layer, info)
            info.reset()


def begin_reload(model: Module) -> None:
    """Have vLLM transform every layer again that gets its tensors."""
    name_loaders(model)
    initialize_layerwise_reload(model)
    if current_platform.is_cpu():
        _forget_kernels(model)


def name_loaders(model: Module) -> None:
    """Give the loaders that are partial functions (MiniMax-M2's norms) a name: vLLM 0.32 asks every loader for it, and fails where there is none
    (model_loader/reload/layerwise.py, `_get_original_loader`)."""
    for parameter in model.parameters():
        loader = getattr(parameter, "weight_loader", None)
        if isinstance(loader, partial):
            loader.__name__ = loader.func.__name__  # type: ignore[attr-defined]


def lost_sentence(model: Module, lost: list[str]) -> str:
    """`lost`: names of parameters into which nothing was loaded."""
    what = ", ".join(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
    return f"vLLM's loaders of {type(model).__name__} do not reach {what}: {FIX}"


def _lost(model: Module) -> list[str]:
    """Parameters into which nothing was loaded, for which vLLM warns at most. Parameters that share memory with a loaded one count as loaded.

    Layers whose reload is still under way at the end are checked. They may be complete all the same: an embedding with padded rows gets fewer
    elements than it has.
    """
    waiting = [(name, layer) for name, layer in model.named_modules() if get_layerwise_info(layer).kernel_tensors]
    done = (layer for layer in model.modules() if not get_layerwise_info(layer).kernel_tensors)
    reached = {p.data_ptr() for layer in done for p in layer.parameters(recurse=False) if p.numel() and not p.is_meta}
    for _, layer in waiting:
        reached |= {tensor.data_ptr() for key, tensor in _own(layer).items() if tensor.numel() and key in _came(layer)}
    return [
        f"{name}.{key}"
        for name, layer in waiting
        for key, tensor in _awaited(layer).items()
        if not tensor.numel() or tensor.data_ptr() not in reached
    ]


def _own(layer: Module) -> dict[str, Tensor]:
    """Parameters that a layer, whose reload is under way, computes with and loads: not those that vLLM derives from others. Ones that it has packed
    elsewhere are empty."""
    info = get_layerwise_info(layer)
    assert info.kernel_tensors
    loads = {name for name, tensor in info.restore_metadata[0].items() if tensor.numel()} | KEPT
    return {name: tensor for name, tensor in info.kernel_tensors[0].items() if name in loads}


def _came(layer: Module) -> set[str]:
    return {name for name, _ in get_layerwise_info(layer).loaded_weights}


def _awaited(layer: Module) -> dict[str, Tensor]:
    """Parameters that a layer still lacks. A quantized layer is complete with any tensor, because its scales may be in no file."""
    came = _came(layer)
    if came and not needs_all_parameters(layer):
        return {}
    return {name: tensor for name, tensor in _own(layer).items() if name not in came}


def needs_all_parameters(layer: Module) -> bool:
    """Whether all parameters of a layer are in the model files: not where it is quantized."""
    method = getattr(layer, "quant_method", None)
    return not isinstance(method, QuantizeMethodBase) or type(method) in UNQUANTIZED


def computes_with_what_it_loads(model: Module) -> bool:
    """Whether vLLM's model uses its weights as loaded on this platform, so that they can be updated in place."""
    return not current_platform.is_cpu() and all(map(_keeps_its_weights, model.modules()))


def _keeps_its_weights(module: Module) -> bool:
    if isinstance(module, QuantizeMethodBase):
        return True  # that of experts is a module as well, and is checked with its layer
    method: Any = getattr(module, "quant_method", None)
    if type(method) is UnquantizedFusedMoEMethod:
        return method.unquantized_backend in KEEPING_EXPERTS
    if isinstance(method, QuantizeMethodBase) and type(method) not in KEEPING:
        return False
    if type(module) is Attention:  # it has scales but no weights; its implementation may transform some
        implementation: Any = type(module.impl)
        own = implementation.process_weights_after_loading
        return bool(own is AttentionImplBase.process_weights_after_loading)
    return not hasattr(module, "process_weights_after_loading")


def _forget_kernels(model: Module) -> None:
    """Have vLLM make the kernels of experts again, because only then it packs their weights for a CPU (0.32)."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


def repack_embeddings(model: Module) -> None:
    """Pack the output layer's weights again, of which vLLM keeps a packed copy on CPU. An output layer that shares the embedding's weight (Llama)
    gets no tensor of its own on reload, and vLLM 0.32 would keep the packed copy of the old weights: a mixture of two policies."""
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
