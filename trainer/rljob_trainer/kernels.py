"""Whether kernels of our own can run here. No torch here."""

import os
import shutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def has_compiler() -> bool:
    """Whether Triton, and so torch.compile on a GPU, finds the C compiler that it calls for every kernel (triton/runtime/build.py)."""
    return any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang"))))


def has_triton(gpu: bool) -> bool:
    """Whether Triton's kernels can be used on tensors of this device."""
    return gpu and find_spec("triton") is not None and has_compiler()


@cache
def triton_kernels(module: str, gpu: bool) -> ModuleType | None:
    """A module of Triton kernels, which cannot be imported everywhere; None where they cannot be used."""
    return import_module(module) if has_triton(gpu) else None
