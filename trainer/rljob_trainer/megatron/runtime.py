"""Makes the installed megatron-core and megatron-bridge run here: on CPU when there is no GPU, in torch layers when there is no Transformer Engine.

Measured on megatron-core 0.19.2; files and lines below are of that version.
"""

import functools
import importlib
import importlib.machinery
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.utils._device

from rljob_trainer.kernels import has_compiler


@functools.cache
def install() -> None:
    """Patch, in the one order that works. Call it before anything imports megatron; further calls do nothing."""
    warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")
    # asks for GPUs without starting CUDA, which would not survive a fork
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # communication of tensor and context parallelism has to be queued before the product that it overlaps with (megatron.training/arguments.py:1454)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    # megatron's inference code imports it where vLLM has brought it, and it starts CUDA to see the GPUs, which would not survive a fork either
    sys.modules.setdefault("flashinfer", None)  # type: ignore[arg-type]
    # megatron-bridge looks for it on the disk for every parameter of every export (models/conversion/utils.py:407), where it is not installed
    sys.modules.setdefault("modelopt", None)  # type: ignore[arg-type]
    _choose_compiler()
    if not torch.cuda.is_available():
        _patch_torch()
        _patch_megatron()
    from rljob_trainer.megatron import wgrad

    wgrad.install()
    from rljob_trainer.megatron import adam, gathering, layers

    adam.install()
    gathering.install()
    layers.install()
    _import_bridge()
    _clean_configurations_once()


def _choose_compiler() -> None:
    """core/jit.py:26 compiles small functions, which pays on a GPU and takes a C compiler there; on CPU it takes a C++ compiler and seconds."""
    if not (torch.cuda.is_available() and has_compiler()):
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault(
        "TORCHINDUCTOR_COMPILE_THREADS", "1"
    )  # else a pool of processes as large as the machine, for a few kernels


class _Stream:
    """Stands for torch.cuda.Stream where everything is synchronous: there is one stream and it is always ready."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or self

    def synchronize(self, *_: Any) -> None: ...

    record = wait = wait_stream = wait_event = synchronize


def _patch_torch() -> None:
    """The names of torch that megatron calls without asking whether there is a GPU."""
    cuda = {
        "current_device": lambda: torch.device(
            "cpu"
        ),  # used as `device=`: param_and_grad_buffer.py:1180 and 115 others
        "synchronize": lambda *_, **__: None,  # p2p_communication.py:419
        "Stream": _Stream,  # distributed_data_parallel.py:297
        "current_stream": lambda *_: _Stream(),  # param_and_grad_buffer.py:632
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),  # tensor_parallel/random.py:303
        "manual_seed": lambda seed: torch.manual_seed(seed) and None,  # tensor_parallel/random.py:118
    }
    # `with torch.device(...)` knows factories by identity and has to remember the originals, or models made on "meta" have no values
    torch.utils._device._device_constructors()
    # optimizer.py:698, schedules.py:749, transformer/utils.py:39
    names = ("tensor", "zeros", "ones", "empty", "empty_like")
    factories = {name: _on_cpu(getattr(torch, name)) for name in names}
    tensor = {"cuda": lambda self, *_, **__: self, "type": _tensor_type(torch.Tensor.type)}
    for owner, stand_ins in ((torch.cuda, cuda), (torch, factories), (torch.Tensor, tensor)):
        for name, stand_in in stand_ins.items():
            setattr(owner, name, stand_in)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`factory` with device "cuda" read as "cpu" and pinning left out."""

    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return on_cpu


def _tensor_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """distrib_optimizer.py:477 knows parameters by "torch.cuda.FloatTensor" only; megatron alone gets that answer."""

    def tensor_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        asked_by_megatron = sys._getframe(1).f_globals.get("__name__", "").startswith("megatron.")
        return answer.replace("torch.", "torch.cuda.", 1) if asked_by_megatron and not args and not kwargs else answer

    return tensor_type


def _patch_megatron() -> None:
    """Names of megatron's own: two call into CUDA below torch's Python names, one (moe_utils.py:1184) forgets, on CPU, what it was asked for."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    token_dispatcher.maybe_move_tensor_to_cpu = _as_numpy


def _as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


class _Stub(types.ModuleType):
    """A module of empty module classes, made as they are asked for."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {})


def _import_bridge() -> None:
    """megatron.bridge imports classes of Transformer Engine for LoRA (peft/lora_layers.py:20), which we never use."""
    from megatron.core.models.gpt import gpt_layer_specs

    # this module has to find out that there is no Transformer Engine before the stand-ins come
    importlib.import_module("megatron.core.extensions.transformer_engine")
    with nullcontext() if gpt_layer_specs.HAVE_TE else _stand_ins(), _logging_as_it_was():
        importlib.import_module("megatron.bridge")
    logging.getLogger("megatron").setLevel(logging.ERROR)


def _clean_configurations_once() -> None:
    """megatron-bridge copies the model's configuration, without what pickle refuses, for every layer of every export, and also where there is no
    other stage to send it to (models/conversion/param_mapping.py:1759): most of an export's time."""
    param_mapping: Any = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    clean, known = param_mapping.remove_non_pickleables, dict[tuple[int, int], Any]()

    def clean_once(configuration: Any, max_depth: int) -> Any:
        key = id(configuration), max_depth
        if key not in known:
            known[key] = configuration, clean(configuration, max_depth)  # held, so that its id stays its own
        return known[key][1]

    param_mapping.remove_non_pickleables = clean_once


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Stand-ins for Transformer Engine, gone afterwards, so that nobody else takes them for the real package."""
    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.ops")
    for name in names:
        sys.modules[name] = _Stub(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


@contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """The import configures the root logger and reports, with tracebacks, every optional package that it does not find."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.setLevel(level)
        root.handlers[:] = handlers
