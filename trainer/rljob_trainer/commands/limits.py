"""What pod and node leave to NCCL and to ranks in several processes: locked memory, InfiniBand, shared memory, access between GPUs."""

import os
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

SHM = 2**30
"""Bytes of /dev/shm that NCCL's user guide asks for in a container (troubleshooting, shared memory)."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
IPC_LOCK = 14
"""Bit of CAP_IPC_LOCK (linux/capability.h). A process that has it may lock any amount of memory."""


def describe(gpus: int, can_access: Callable[[int, int], bool]) -> dict[str, str]:
    """Of this process: what is there, then a colon and what to set where that is too little. `can_access`: of two GPUs by index."""
    status, limit = Path("/proc/self/status").read_text(), locked_memory(Path("/proc/self/limits").read_text())
    devices = sorted(Path("/dev/infiniband").glob("uverbs*"))
    closed = [device.name for device in devices if not os.access(device, os.R_OK | os.W_OK)]
    adapters = sorted(adapter.name for adapter in Path("/sys/class/infiniband").glob("*"))
    shm = os.statvfs("/dev/shm")
    locks = has_capability(IPC_LOCK, status)
    return {
        "memlock": memlock(limit, locks, bool(devices)),
        "IPC_LOCK": ipc_lock(limit, locks, bool(devices)),
        "InfiniBand": infiniband(adapters, [device.name for device in devices], closed, os.geteuid()),
        "/dev/shm": shared_memory(shm.f_blocks * shm.f_frsize),
        "GPU peer access": peer_access(gpus, can_access),
    }


def locked_memory(limits: str) -> int | None:
    """Bytes that a process may lock, from the text of /proc/PID/limits (the soft limit); None: any number."""
    (line,) = (line for line in limits.splitlines() if line.startswith("Max locked memory"))
    soft = line.split()[3]
    return None if soft == "unlimited" else int(soft)


def has_capability(bit: int, status: str) -> bool:
    """Whether it is effective, from the text of /proc/PID/status."""
    (line,) = (line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> bit & 1)


def memlock(limit: int | None, locks: bool, devices: bool) -> str:
    """`locks`: the process has IPC_LOCK. `devices`: the pod has InfiniBand, which locks the memory that it reads and writes."""
    if limit is None:
        return "unlimited"
    if locks or not devices:
        return f"{_size(limit)}, {'which does not bind with IPC_LOCK' if locks else 'enough without InfiniBand'}"
    return f"{_size(limit)}, too little for InfiniBand: set LimitMEMLOCK=infinity for the container runtime of the node"


def ipc_lock(limit: int | None, locks: bool, devices: bool) -> str:
    if locks:
        return "yes"
    if limit is None or not devices:
        return f"no; not needed {'while memlock is unlimited' if limit is None else 'without InfiniBand'}"
    return "no: pods of a job have no capabilities, so raise memlock on the node"


def infiniband(adapters: Sequence[str], devices: Sequence[str], closed: Sequence[str], user: int) -> str:
    """`adapters`: of the node. `devices`: of the pod. `closed`: those that `user` cannot read and write."""
    if closed:
        rule = "give them mode 0666 on the node, as rdma-core's udev rules do"
        return f"{', '.join(devices)}, of which uid {user} cannot open {', '.join(closed)}: {rule}"
    if devices:
        return ", ".join(devices)
    if adapters:
        plugin = "request the resource of the node's RDMA device plugin in spec.trainer.template.resources"
        return f"{', '.join(adapters)} on the node, no device in the pod: {plugin}"
    return "none; NCCL uses sockets between nodes"


def shared_memory(size: int) -> str:
    """`size`: bytes."""
    if size >= SHM:
        return _size(size)
    fix = "raise shmSize of spec.trainer or spec.rollout, and the pod's memory limit, which bounds it"
    return f"{_size(size)}, less than the {_size(SHM)} that NCCL asks for: {fix}"


def peer_access(gpus: int, can_access: Callable[[int, int], bool]) -> str:
    """Whether each two GPUs can read each other's memory, in both directions."""
    if gpus < 2:
        return "-; needs 2 GPUs"
    pairs = list(combinations(range(gpus), 2))
    without = [f"{i}-{j}" for i, j in pairs if not (can_access(i, j) and can_access(j, i))]
    if not without:
        return f"between all {gpus} GPUs"
    fix = "turn off MIG, and ACS of the PCIe bridges, on the node (`nvidia-smi topo -p2p r` says more)"
    return f"not between {_some(without)}, so NCCL copies through /dev/shm: {fix}"


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more pairs" if len(names) > most else "")


def _size(size: int) -> str:
    """In the largest binary unit of which there is one, with a decimal where it is not whole."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{size / 1024**power:.1f}".removesuffix(".0") + f" {UNITS[power]}"
