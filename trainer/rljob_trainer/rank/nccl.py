"""NCCL on this rank: the queues of a GPU that it shares with kernels; and how it connects the ranks, by what it says of its channels: over
InfiniBand, sockets, or between the GPUs of a node."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from rljob_api.sizing.layout import Layout

CHANNEL = re.compile(r"NCCL INFO Channel \S+ : .* via (\S+)")
"""`NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA` (NCCL 2.18 to 2.29)."""
WITHIN_A_NODE = ("P2P", "SHM")


def choose_queues(layout: Layout) -> None:
    """One hardware queue where communication has to begin before the product that it overlaps with, which tensor and context parallelism take for
    granted (megatron.training/arguments.py:1454); CUDA's eight otherwise: a step of a pipeline takes 5 % longer with one. To be called before CUDA
    starts."""
    if layout.tensor > 1 or layout.context > 1:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def write_channels(file: Path) -> None:
    """From here on NCCL writes into this file how it connects this rank; to be called before the first group. Whoever sets NCCL_DEBUG has
    the lines in the rank's log instead."""
    if "NCCL_DEBUG" not in os.environ:
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": str(file)}


def transports() -> list[str]:
    """Of this rank so far; empty without NCCL, and where its lines are elsewhere."""
    try:
        return transports_in(Path(os.environ["NCCL_DEBUG_FILE"]).read_text(errors="replace"))
    except (KeyError, OSError):
        return []


def transports_in(text: str) -> list[str]:
    """By name, without numbers of devices: `NET/IB/GDRDMA`, `NET/Socket`, `P2P`, `SHM`."""
    return sorted({_name(transport) for transport in CHANNEL.findall(text)})


def sentence(ranks: Iterable[Iterable[str]]) -> str:
    """Of all ranks, what leaves a node first; empty when nobody knows."""
    used = {transport for rank in ranks for transport in rank}
    ordered = sorted(used, key=lambda transport: (transport in WITHIN_A_NODE, transport))
    return f"NCCL over {', '.join(ordered)}" if ordered else ""


def _name(transport: str) -> str:
    first, *rest = transport.split("/")
    return first if first in WITHIN_A_NODE else "/".join([first, *(part for part in rest if not part.isdigit())])
