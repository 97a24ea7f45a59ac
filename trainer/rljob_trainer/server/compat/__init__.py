"""What we change in vLLM, or rely on in detail, a module for each subject. `install` goes before the server starts; it imports no vLLM itself."""

import importlib

from rljob_trainer import patches

VERSIONS = ("0.32.0",)
"""Of vLLM, which every patch below was proven on."""

MODULES = (
    "cpu_adapters",
    "cpu_experts",
    "cpu_engine",
    "cpu_latent_attention",
    "exact_on_cpu",
    "scheduler",
    "sleep",
    "weight_updates",
)


def install() -> None:
    """Apply the patches that are needed here. Raises UnsupportedVersionError, before any is applied."""
    patches.require_versions([patches.Patch("", "vllm", VERSIONS)])
    for name in MODULES:
        patches.install(importlib.import_module(f"{__name__}.{name}").PATCHES)
