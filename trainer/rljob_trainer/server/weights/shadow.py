"""A second copy of the parameters of vLLM's model, into which its own loaders put an update while it generates.

The copy is a model of its own: the same modules with parameters of their own, in the form in which vLLM loads them. Everything else is shared. So
loaders slice, fuse and place tensors as they always do, and nobody else has to know how; the model that generates is not touched before `apply`.
"""

from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    _layerwise_process,
    get_layerwise_info,
)
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS
from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs
from vllm.platforms import current_platform

from rljob_trainer.server.weights.reload import (
    LostUpdateError,
    begin_reload,
    lost_sentence,
    name_loaders,
    needs_all_parameters,
    repack_embeddings,
)


class Shadow:
    """The copy, on `device`: that of the model, or host memory, which is pinned if the model is on a GPU."""

    def __init__(self, model: Module, config: Any, device: torch.device, keeps: bool) -> None:
        """`config`: vLLM's ModelConfig. `keeps`: the model computes with weights as they are loaded (reload.computes_with_what_it_loads)."""
        name_loaders(model)
        self._model, self._config, self._keeps = model, config, keeps
        self._pairs: list[tuple[Module, Module]] = []
        """Layers of the model, and of the copy."""
        self._tensors: dict[Any, Tensor] = {}
        """The copy's memory, by that of the model, so that layers that share one also share its copy."""
        self._device = device
        self._copy: Any = self._copied(model, {})
        self._own = {_address(tensor) for tensor in self._tensors.values() if tensor.numel()}
        self._reached: set[int] = set()
        """Addresses of the copy's tensors into which something was loaded. Every update loads the same."""
        self._known = False

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load some tensors of an update into the copy."""
        if self._known:
            self._copy.load_weights(iter(tensors))
            return
        with _Writes() as writes:
            self._copy.load_weights(iter(tensors))
        self._reached |= writes.addresses

    def check(self) -> None:
        """Called after all tensors of an update. Raises LostUpdateError when a parameter got nothing."""
        lost = [] if self._known else list(self._lost())
        if lost:
            raise LostUpdateError(lost_sentence(self._model, lost))
        self._known = True

    def apply(self) -> None:
        """Put the update into the model that generates. Raises what vLLM's transformations raise; the model must not serve then."""
        if self._keeps:
            for layer, copy in self._pairs:
                for name, tensor in self._loaded(copy):
                    getattr(layer, name).data.copy_(tensor.data, non_blocking=True)
            return
        begin_reload(self._model)
        for layer, copy in self._pairs:
            self._process(layer, dict(self._loaded(copy)))
        finalize_layerwise_reload(self._model, self._config)
        if current_platform.is_cpu():
            repack_embeddings(self._model)

    def abandon(self) -> None:
        """Nothing to do: the next update overwrites the copy."""

    def _process(self, layer: Module, loaded: dict[str, Tensor]) -> None:
        """Have vLLM make of the loaded tensors what the layer computes with, into the memory that it computes with."""
        info = get_layerwise_info(layer)
        kernel = dict(info.kernel_tensors[0]) if info.kernel_tensors else {}
        for name in loaded.keys() & SKIP_TENSORS:
            kernel[name].data.copy_(loaded.pop(name).data)
        if not loaded:
            return
        if is_deferred_attention_layer(layer):
            for name, tensor in loaded.items():
                kernel[name].data.copy_(tensor.data)
            return
        for name, tensor in loaded.items():
            own = info.restore_metadata[0][name]
            setattr(layer, name, restore_layer_refs(_like(own, tensor.data.to(info.restore_device, copy=True)), layer))
        _layerwise_process(layer, info)

    def _copied(self, module: Module, made: dict[int, Module]) -> Module:
        if id(module) in made:
            return made[id(module)]
        made[id(module)] = copy = object.__new__(type(module))
        copy.__dict__ = module.__dict__ | {"_parameters": {}, "_modules": {}}
        loads = get_layerwise_info(module).restore_metadata[0]
        for name, own in module._parameters.items():
            form = loads.get(name, own if name in SKIP_TENSORS else None)
            copy._parameters[name] = self._parameter(own, form, module, copy) if form is not None else own  # type: ignore[assignment]
        for name in loads.keys() - module._parameters.keys():  # what vLLM keeps in another form
            copy._parameters[name] = self._parameter(None, loads[name], module, copy)  # type: ignore[assignment]
        for name, child in module._modules.items():
            copy._modules[name] = self._copied(child, made) if child is not None else None
        self._pairs.append((module, copy))
        return copy

    def _parameter(self, own: Tensor | None, form: Tensor, layer: Module, copy: Module) -> Tensor:
        """A parameter of the copy. `own`: that of the model, if it has it; `form`: one like it was before vLLM transformed it."""
        key = (own.data_ptr(), form.shape) if own is not None and own.numel() else id(form)
        if key not in self._tensors:
            self._tensors[key] = memory = torch.zeros(form.shape, dtype=form.dtype, device=self._device)
            if self._device.type == "cpu" and not current_platform.is_cpu() and memory.nbytes:
                _pin(memory)
        made = restore_layer_refs(_like(form, self._tensors[key]), copy)
        for name, value in made.__dict__.items():
            if isinstance(value, MethodType) and value.__self__ is layer:
                made.__dict__[name] = value.__func__.__get__(copy)
        if hasattr(made, "weight_loader"):
            made.weight_loader = _get_original_loader(made)
        return made

    def _loaded(self, copy: Module) -> Iterator[tuple[str, Tensor]]:
        return ((n, t) for n, t in copy._parameters.items() if t is not None and self._is_reached(t))

    def _is_reached(self, tensor: Tensor) -> bool:
        address = _address(tensor)
        return address in self._reached and address in self._own

    def _lost(self) -> Iterator[str]:
        for name, copy in self._copy.named_modules():
            own = {n: t for n, t in copy._parameters.items() if t is not None and _address(t) in self._own}
            came = [n for n, t in own.items() if self._is_reached(t)]
            if needs_all_parameters(copy) or not came:
                yield from (f"{name}.{n}" for n in own if n not in came)


class _Writes(TorchDispatchMode):
    """Addresses of the memory that operators change."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and args and isinstance(args[0], Tensor):
            self.addresses.add(_address(args[0]))
        return func(*args, **(kwargs or {}))


def _pin(memory: Tensor) -> None:
    """Pin host memory, which a GPU reads at full rate. torch's own pinned memory takes up to twice the bytes (checkpoint/host_memory.py)."""
    code: Any = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    torch.cuda.check_error(int(code))


def _address(tensor: Tensor) -> int:
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def _like(form: Tensor, data: Tensor) -> Tensor:
    """The data as a parameter of the class, and with the attributes, of another one; as vLLM makes them (reload/meta.py)."""
    made = data.detach()
    made.__class__ = form.__class__
    made.__dict__ = form.__dict__.copy()
    return made
