"""GPUs by name, and the memory that a process sees of them."""

import difflib
import re
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

WITHOUT_MEANING = {"nvidia", "geforce", "sxm", "sxm4", "sxm5", "pcie", "hbm2e", "hbm3", "hbm3e"}
"""Words in a GPU's name that do not change its memory."""


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
    """Of a GPU as DEVICES, its maker or a node's label names it, with or without its size, or of a Kubernetes quantity. Raises ValueError."""
    cards = [card for card in DEVICES if _is(card, name)]
    if len(cards) > 1:
        raise ValueError(f"there are several: {', '.join(cards)}")
    if cards:
        return DEVICES[cards[0]] * GIB
    try:
        found = quantity.parse(name) / 1000
    except ValueError:
        raise ValueError(_unknown(name)) from None
    if found < GIB:
        raise ValueError("less than 1 GiB: write a size such as 80Gi")
    return found


def _is(card: str, name: str) -> bool:
    """Whether a name, such as `h100`, `RTX 4090` or `NVIDIA-H100-80GB-HBM3`, is this card's, with its size or without."""
    model, size = card.split("-")
    said = "".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in WITHOUT_MEANING)
    return said in (model, f"{model}{size}", f"{model}{size}b")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), DEVICES, n=1)
    hint = f"did you mean {near[0]}? Known are" if near else "neither a size, such as 80Gi, nor one of"
    return f"{hint} {', '.join(DEVICES)}"
