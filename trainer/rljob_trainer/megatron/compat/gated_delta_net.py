"""Gated delta nets (Qwen3-Next, Qwen3.5): kernels of flash-linear-attention on a GPU where the image has it, plain torch otherwise.

megatron-core refuses to make the layer without that package, and its own implementation in torch does not take packed sequences
(core/ssm/gated_delta_net/common.py, torch_chunk_gated_delta_rule). The package is imported by the first call, because its import asks the driver
for the GPU, and a process that has done so cannot fork ranks (rank/main.py keeps megatron-core and transformers from it). Can go when
megatron-core takes packed sequences in torch.
"""

import functools
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

PACKAGE, PLAIN = "fla", "rljob_trainer.megatron.plain_torch.gated_delta_net"
KERNELS = {"causal_conv1d": "fla.modules.convolution", "chunk_gated_delta_rule": "fla.ops.gated_delta_rule"}
"""Where the package has what megatron-core calls outside of what it compiles; `l2norm` is compiled, so torch's is as good."""
_FOLDER = "megatron/core/ssm/gated_delta_net"


def _choose_at_the_first_call() -> None:
    modules: list[Any] = [importlib.import_module(f"megatron.core.ssm.gated_delta_net.{m}") for m in ("common", "gdn")]
    ours = {"l2norm": _function(PLAIN, "l2norm")} | {name: _chosen(name) for name in KERNELS}
    for module in modules:
        for name, function in ours.items():
            if hasattr(module, name):
                setattr(module, name, function)
        module.HAVE_FLA = True


def _chosen(name: str) -> Callable[..., Any]:
    @functools.cache
    def function() -> Callable[..., Any]:
        kernels = torch.cuda.is_available() and find_spec(PACKAGE) is not None
        return _function(KERNELS[name] if kernels else PLAIN, name)

    return lambda *arguments, **options: function()(*arguments, **options)


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


PATCHES = (
    Patch(
        "gated delta nets",
        "megatron-core",
        VERSIONS["megatron-core"],
        _choose_at_the_first_call,
        replaces={
            f"{_FOLDER}/common.py:_GDNBase._prepare_input_for_gated_delta_rule": "ce63c3de0fbe5652",
            f"{_FOLDER}/gdn.py:GatedDeltaNet.forward": "e4cd9a2d0a9e061a",
        },
    ),
)
