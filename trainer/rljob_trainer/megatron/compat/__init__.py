"""What we change in torch, megatron-core and megatron-bridge, and rely on in transformers: a module for each package and subject.

`install` makes megatron run here: on CPU when there is no GPU, in torch layers when there is no Transformer Engine. Call it before anything
imports megatron; nothing else of this package may be imported before.
"""

import functools
import importlib
import warnings

from rljob_trainer import patches

VERSIONS = {"torch": ("2.13.0",), "megatron-core": ("0.19.2",), "megatron-bridge": ("0.6.2",)}
"""What every patch below was proven on."""

MODULES = (
    "environment",
    "on_cpu",
    "host_adam",
    "adam",
    "core_checkpoints",
    "pipeline_shapes",
    "core_layers",
    "grouped_products",
    "bridge",
    "families",
    "minimax_m2",
    "kimi_k2",
    "sparse_attention",
    "qwen_vl",
    "qwen3_vl",
    "qwen3_5",
)
"""In the one order that works: each may import what those before it have made importable."""


@functools.cache
def install() -> None:
    """Apply the patches that are needed here; further calls do nothing. Raises UnsupportedVersionError, before any is applied."""
    warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")
    required = [patches.Patch("", package, versions) for package, versions in VERSIONS.items()]
    patches.require_versions(required)
    for name in MODULES:
        patches.install(importlib.import_module(f"{__name__}.{name}").PATCHES)
