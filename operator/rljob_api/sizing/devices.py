"""GPUs by name, and the memory that a process sees of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_api import quantity
from rljob_api.text import nearest

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
"""Memory by GPU, in GiB, as torch.cuda.mem_get_info reports it, which is a little less than the name says: measured on the H200, for the others from
torch's out-of-memory messages."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU does in a second, by its maker's data sheet."""

    operations: float
    """Of dense matrices in bfloat16."""
    memory: float
    """Bytes read from its memory."""
    neighbours: float
    """Bytes to the other GPUs of its node: NVLink, one way, or PCIe."""
    float32: float
    """Operations in float32."""
    grouped: bool = False
    """Whether the products of all experts are one kernel of it (trainer/rljob_trainer/megatron/compat/grouped_products.py)."""


RATES: Mapping[str, Rates] = {
    "a100-40g": Rates(312e12, 1.56e12, 300e9, 19.5e12),
    "a100-80g": Rates(312e12, 2.04e12, 300e9, 19.5e12),
    "b200-180g": Rates(2250e12, 8.0e12, 900e9, 75e12),
    "h100-80g": Rates(989e12, 3.35e12, 450e9, 67e12, grouped=True),
    "h200-141g": Rates(989e12, 4.8e12, 450e9, 67e12, grouped=True),
    "l40s-48g": Rates(362e12, 0.86e12, 32e9, 91.6e12),
    "rtx4090-24g": Rates(165e12, 1.01e12, 32e9, 82.6e12),
}

PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
"""Labels of nodes from NVIDIA's GPU feature discovery: the product, such as `NVIDIA-H100-80GB-HBM3`, and its memory in MiB as nvidia-smi counts
it."""
DRIVER = 1.0 * GIB
"""Bytes of that memory which no process sees, rounded up: between 0.6 (H200) and 0.9 GiB (A100)."""

WITHOUT_MEANING = {"nvidia", "geforce", "sxm", "sxm4", "sxm5", "pcie", "hbm2e", "hbm3", "hbm3e"}
"""Words in a GPU's name that do not change its memory."""


@dataclass(frozen=True)
class Gpu:
    """The GPU that a job is compared with. `bytes`: what a process sees. `found`: where the size is known from; empty: the user named it."""

    bytes: float
    source: str = ""
    rates: Rates | None = None
    """None: it is known by its size only."""


def smallest(nodes: Iterable[Mapping[str, str]]) -> Gpu | None:
    """The smallest GPU of nodes, by their labels; None: no label says it."""
    sizes = [
        (int(labels[MEMORY]), labels.get(PRODUCT, "GPU")) for labels in nodes if labels.get(MEMORY, "").isdecimal()
    ]
    if not sizes:
        return None
    mebibytes, product = min(sizes)
    kinds = len({name for _, name in sizes})
    which = f"{product}, by the labels of {len(sizes)} node{'s' if len(sizes) > 1 else ''}"
    source = which + (f", the smallest of {kinds} kinds" if kinds > 1 else "")
    gpus = [gpu for gpu in DEVICES if _is(gpu, product)]
    return Gpu(mebibytes * 2**20 - DRIVER, source, RATES[gpus[0]] if len(gpus) == 1 else None)


def device(name: str) -> Gpu:
    """A GPU by its name, with or without its size, as in DEVICES, by its maker or in a node's label; or by its size as a Kubernetes quantity. Raises
    ValueError for a name that is not known, or fits several GPUs."""
    gpus = [gpu for gpu in DEVICES if _is(gpu, name)]
    if len(gpus) > 1:
        raise ValueError(f"there are several: {', '.join(gpus)}")
    if gpus:
        return Gpu(DEVICES[gpus[0]] * GIB, rates=RATES[gpus[0]])
    try:
        size = quantity.parse(name) / 1000
    except ValueError:
        raise ValueError(_unknown(name)) from None
    if size < GIB:
        meant = ", ".join(gpu for gpu in DEVICES if name in gpu)
        raise ValueError("less than 1 GiB: write a size such as 80Gi" + (f", or {meant}" if meant else ""))
    return Gpu(size)


def _is(gpu: str, name: str) -> bool:
    """Whether a name, such as `h100`, `RTX 4090` or `NVIDIA-H100-80GB-HBM3`, is this GPU's, with its size or without."""
    model, size = gpu.split("-")
    said = "".join(word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in WITHOUT_MEANING)
    return said in (model, f"{model}{size}", f"{model}{size}b")


def _unknown(name: str) -> str:
    near = nearest(name.lower(), DEVICES)
    hint = f"did you mean {near}? Known are" if near else "neither a size, such as 80Gi, nor one of"
    return f"{hint} {', '.join(DEVICES)}"
