"""megatron-bridge: its import, its exports, and its adapters.

megatron.bridge imports classes of Transformer Engine for LoRA also where Transformer Engine is absent
(peft/lora_layers.py:20; NVIDIA-NeMo/Megatron-Bridge#103 made one such import safe). Its import also configures the root logger. Can go when
`import megatron.bridge` works without Transformer Engine and leaves logging alone.

megatron-bridge copies the model's configuration, without what pickle refuses, for every layer of every export, and also where there is no other
stage to send it to (models/conversion/param_mapping.py:1759): most of an export's time.

Can go when broadcasts of the configuration are cached for all mappings (NVIDIA-NeMo/Megatron-Bridge#5367 does it for two, #5453 for all).

Without Transformer Engine, megatron-bridge takes megatron-core's stand-ins for its layers and asks whether a matrix is an instance of one, which
raises (peft/utils.py, get_adapter_attributes_from_linear). Can go when it asks megatron-core's own HAVE_TE.
"""

import importlib
import importlib.machinery
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.core_layers import lacks_transformer_engine
from rljob_trainer.patches import Patch


def _import_bridge() -> None:
    from megatron.core.models.gpt import gpt_layer_specs

    # this module has to find out that there is no Transformer Engine before the stand-ins come
    importlib.import_module("megatron.core.extensions.transformer_engine")
    with nullcontext() if gpt_layer_specs.HAVE_TE else _stand_ins(), _logging_as_it_was():
        importlib.import_module("megatron.bridge")
    logging.getLogger("megatron").setLevel(logging.ERROR)


class _Stub(types.ModuleType):
    """A module of empty module classes, made as they are asked for."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {})


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


def _clean_configurations_once() -> None:
    param_mapping: Any = importlib.import_module("megatron.bridge.models.conversion.param_mapping")
    clean, known = param_mapping.remove_non_pickleables, dict[tuple[int, int], Any]()

    def clean_once(configuration: Any, max_depth: int) -> Any:
        key = id(configuration), max_depth
        if key not in known:
            known[key] = configuration, clean(configuration, max_depth)  # held, so that its id stays its own
        return known[key][1]

    param_mapping.remove_non_pickleables = clean_once


def _say_that_it_is_absent() -> None:
    utils: Any = importlib.import_module("megatron.bridge.peft.utils")
    utils.HAVE_TE = False


PATCHES = (
    Patch("import of megatron.bridge", "megatron-bridge", VERSIONS["megatron-bridge"], _import_bridge),
    Patch(
        "configurations are cleaned once",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _clean_configurations_once,
        replaces={"megatron/bridge/models/conversion/utils.py:remove_non_pickleables": "5dc1bb70fb0edd56"},
    ),
    Patch(
        "adapters without Transformer Engine",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _say_that_it_is_absent,
        needed=lacks_transformer_engine,
        replaces={"megatron/bridge/peft/utils.py:get_adapter_attributes_from_linear": "21a617b795af0cac"},
    ),
)
