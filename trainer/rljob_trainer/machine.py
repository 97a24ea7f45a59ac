"""What this machine has: addresses, IPv4 or IPv6, free ports, GPUs, CPUs, memory, and whether kernels of our own can run on it. No torch here."""

import os
import random
import resource
import shutil
import socket
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import psutil

VISIBLE = "CUDA_VISIBLE_DEVICES"
CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 2**60
"""cgroup v1 writes a number near 2**63 where there is no limit."""


def interface_of(address: str) -> str | None:
    """The network interface that has this address, or None.

    gloo would otherwise look up the host name, which may belong to another interface.
    """
    return next(
        (name for name, known in psutil.net_if_addrs().items() if address in {a.address for a in known}),
        None,
    )


def any_address() -> str:
    """What a server binds to be reached by IPv4 and by IPv6, as far as the kernel has them."""
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def loopback() -> str:
    """`127.0.0.1`, or `::1` on a machine without IPv4."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def free_port() -> int:
    """Below the ports that the system hands out, so that nobody takes it before its user does."""
    while True:
        port = random.randint(10_000, 30_000)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Whether nobody listens at a port."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def gpus(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """The machine's GPUs, as CUDA_VISIBLE_DEVICES names them; only those in it, when it is set."""
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    return [str(i) for i, _ in enumerate(devices.glob("nvidia[0-9]*"))]


def cpus(cgroup: Path = CGROUP) -> int:
    """CPUs that this process may use: those of its affinity, and no more than the limit of its container, rounded down. At least 1.

    A pod's limit is a quota of time on all CPUs of the node, which neither os.cpu_count nor the affinity shows: cpu.max of cgroup v2 does.
    """
    allowed, quota = len(os.sched_getaffinity(0)), cgroup / "cpu.max"
    if quota.is_file():
        limit, period = quota.read_text().split()
        if limit != "max":
            allowed = min(allowed, int(limit) // int(period))
    return max(1, allowed)


def oom_kills(cgroup: Path = CGROUP) -> int:
    """Processes of this container that the kernel has killed since it started, because memory ran out: `oom_kill` in memory.events of cgroup v2, or
    in memory.oom_control of v1. 0 where neither is there."""
    for file in (cgroup / "memory.events", cgroup / "memory" / "memory.oom_control"):
        if file.is_file():
            return _counts(file).get("oom_kill", 0)
    return 0


def _counts(file: Path) -> dict[str, int]:
    """Of a control group's file with a name and a number in each line."""
    pairs = (line.split() for line in file.read_text().splitlines())
    return {name: int(number) for name, number in pairs}


def memory_limit(cgroup: Path = CGROUP) -> int | None:
    """Bytes that this container may use; None: as much as the node has."""
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        text = file.read_text().strip() if file.is_file() else "max"
        if text != "max":
            return int(text) if int(text) < UNLIMITED else None
    return None


def memory_used(cgroup: Path = CGROUP) -> int:
    """Bytes that the processes of this container hold, without copies of files, which the kernel gives up when memory is short. 0 where that is not
    known."""
    for directory, usage, prefix in (
        (cgroup, "memory.current", ""),
        (cgroup / "memory", "memory.usage_in_bytes", "total_"),
    ):
        if (directory / usage).is_file():
            counts = _counts(directory / "memory.stat")
            files = sum(counts.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
            return max(0, int((directory / usage).read_text()) - files)
    return 0


def raise_open_files() -> None:
    """Let this process, and those that it starts, open as many files as the machine allows: usually 1,024 of 524,288 or more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def most_open_files() -> float:
    """That this process may have."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if allowed == resource.RLIM_INFINITY else allowed


def has_compiler() -> bool:
    """Whether Triton, and so torch.compile on a GPU, finds the C compiler that it calls for every kernel (triton/runtime/build.py)."""
    return any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang"))))


def has_cuda_compiler() -> bool:
    """Whether DeepGEMM finds the nvcc that it calls for every kernel (deep_jit/backend/cuda/backend.hpp)."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return any(map(shutil.which, [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]))


def has_triton(gpu: bool) -> bool:
    """Whether Triton's kernels can be used on tensors of this device."""
    return gpu and find_spec("triton") is not None and has_compiler()


@cache
def triton_kernels(module: str, gpu: bool) -> ModuleType | None:
    """A module of Triton kernels, which cannot be imported everywhere; None where they cannot be used."""
    return import_module(module) if has_triton(gpu) else None
