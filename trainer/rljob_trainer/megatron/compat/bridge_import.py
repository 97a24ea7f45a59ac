"""megatron.bridge imports classes of Transformer Engine for LoRA also where Transformer Engine is absent
(peft/lora_layers.py:20; NVIDIA-NeMo/Megatron-Bridge#103 made one such import safe). Its import also configures the root logger. Can go when
`import megatron.bridge` works without Transformer Engine and leaves logging alone.
"""

import importlib
import importlib.machinery
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from rljob_trainer.megatron.compat import VERSIONS
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


PATCHES = (Patch("import of megatron.bridge", "megatron-bridge", VERSIONS["megatron-bridge"], _import_bridge),)
