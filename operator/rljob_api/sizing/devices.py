"""GPUs by name, and the memory that a process sees of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_api import quantity

GIB = 2**30
DEVICES: Mapping[str, float] = {
    "a100-40g": 39.4,
    "a100-80g": 79.1,
    "b200-180g": 178.3,
    "h100-80g": 79.1,
    "h200-141g": 139.8,
    "l40s-48g": 44.4,
    "rtx4090-24g": 23.6,
}
"""GiB, a little less than the name says, as torch.cuda.mem_get_info has them: measured on the H200, for the others from torch's messages of memory
that ran out."""

PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
"""Labels that NVIDIA's GPU feature discovery gives to nodes: `NVIDIA-H100-80GB-HBM3`, and MiB as nvidia-smi counts them."""
DRIVER = 1.0 * GIB
"""Of those, what a process does not see: between 0.6 (H200) and 0.9 GiB (A100)."""


@dataclass(frozen=True)
class Device:
    """The GPU that a job is held against. `bytes`: what a process sees. `found`: where the cluster says so; empty when somebody named it."""

    bytes: float
    found: str = ""


def smallest(nodes: Iterable[Mapping[str, str]]) -> Device | None:
    """Of nodes by their labels; None when no label says it."""
    sizes = [
        (int(labels[MEMORY]), labels.get(PRODUCT, "GPU")) for labels in nodes if labels.get(MEMORY, "").isdecimal()
    ]
    if not sizes:
        return None
    mebibytes, product = min(sizes)
    kinds = len({name for _, name in sizes})
    which = f"{product}, by the labels of {len(sizes)} node{'s' if len(sizes) > 1 else ''}"
    return Device(mebibytes * 2**20 - DRIVER, which + (f", the smallest of {kinds} kinds" if kinds > 1 else ""))


def device_bytes(name: str) -> float:
    """Of a name in DEVICES, or of a Kubernetes quantity such as `80Gi`. Raises ValueError."""
    if name.lower() in DEVICES:
        return DEVICES[name.lower()] * GIB
    found = quantity.parse(name) / 1000
    if found < GIB:
        raise ValueError(f"{name} is less than a GiB")
    return found
