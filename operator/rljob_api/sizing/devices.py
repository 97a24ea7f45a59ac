"""GPUs by name, and the memory that a process sees of them."""

from collections.abc import Mapping

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


def device_bytes(name: str) -> float:
    """Of a name in DEVICES, or of a Kubernetes quantity such as `80Gi`. Raises ValueError."""
    if name.lower() in DEVICES:
        return DEVICES[name.lower()] * GIB
    found = quantity.parse(name) / 1000
    if found < GIB:
        raise ValueError(f"{name} is less than a GiB")
    return found
