"""What NCCL needs of pod and node."""

import os

import pytest

from rljob_trainer.commands import doctor
from rljob_trainer.commands.doctor import (
    IPC_LOCK,
    has_capability,
    infiniband,
    ipc_lock,
    locked_memory,
    memlock,
    peer_access,
)

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1048576              1048576              files
Max locked memory         65536                unlimited            bytes
Max address space         unlimited            unlimited            bytes
"""
STATUS = """\
Name:	python
Uid:	65532	65532	65532	65532
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	{effective}
CapBnd:	00000000a80465fb
"""


def test_the_soft_limit_of_locked_memory_is_read() -> None:
    assert locked_memory(LIMITS) == 65536
    assert locked_memory(LIMITS.replace("65536    ", "unlimited")) is None


@pytest.mark.parametrize(
    ("effective", "locks"),
    [
        ("0000000000000000", False),
        ("0000000000004000", True),  # ipc_lock alone, as `capsh --decode` says
        ("00000000a80425fb", False),  # Docker's default: chown to setfcap, without ipc_lock
        ("00000000a80465fb", True),
        ("000001ffffffffff", True),
    ],
)
def test_a_capability_counts_when_it_is_effective(effective: str, locks: bool) -> None:
    assert has_capability(IPC_LOCK, STATUS.format(effective=effective)) is locks


def test_a_limit_of_locked_memory_is_too_little_only_for_infiniband_without_the_capability() -> None:
    node = "set LimitMEMLOCK=infinity for the container runtime of the node"
    assert memlock(65536, False, True) == f"64 KiB, too little for InfiniBand: {node}"
    assert memlock(8 * 2**20, False, False) == "8 MiB, enough without InfiniBand"
    assert memlock(65536, True, True) == "64 KiB, which does not bind with IPC_LOCK"
    assert memlock(None, False, True) == "unlimited"


def test_the_capability_is_missed_only_where_the_limit_is_too_little() -> None:
    assert ipc_lock(65536, False, True) == "no: pods of a job have no capabilities, so raise memlock on the node"
    assert ipc_lock(None, False, True) == "no; not needed while memlock is unlimited"
    assert ipc_lock(65536, False, False) == "no; not needed without InfiniBand"
    assert ipc_lock(65536, True, True) == "yes"


def test_infiniband_needs_devices_in_the_pod_that_its_user_can_open() -> None:
    assert infiniband(["mlx5_0", "mlx5_1"], ["uverbs0", "uverbs1"], [], 65532) == "uverbs0, uverbs1"
    assert infiniband([], [], [], 65532) == "none; NCCL uses sockets between nodes"
    ours = infiniband(["mlx5_0"], [], [], 65532)
    assert ours.startswith("mlx5_0 on the node, no device in the pod: ") and "spec.trainer.template.resources" in ours
    closed = infiniband(["mlx5_0", "mlx5_1"], ["uverbs0", "uverbs1"], ["uverbs1"], 65532)
    assert closed.startswith("uverbs0, uverbs1, of which uid 65532 cannot open uverbs1: ") and "0666" in closed


def test_shared_memory_of_a_container_without_a_size_is_too_little() -> None:
    small = doctor.shared_memory(64 * 2**20)
    assert small.startswith("64 MiB, less than the 1 GiB that NCCL asks for: ") and "shmSize of spec.trainer" in small
    assert doctor.shared_memory(2**30) == "1 GiB"
    assert doctor.shared_memory(3 * 2**29) == "1.5 GiB"
    assert doctor.shared_memory(2**41) == "2 TiB"


def test_peer_access_is_asked_for_all_pairs_in_both_directions() -> None:
    assert peer_access(1, lambda i, j: False) == "-; needs 2 GPUs"
    assert peer_access(8, lambda i, j: True) == "between all 8 GPUs"
    assert peer_access(3, lambda i, j: (i, j) != (2, 1)).startswith(
        "not between 1-2, so NCCL copies through /dev/shm: "
    )
    islands = peer_access(8, lambda i, j: i // 4 == j // 4)
    assert islands.startswith("not between 0-4, 0-5, 0-6, 0-7, 1-4, 1-5 and 10 more pairs, so NCCL")


def test_this_process_has_each_of_them() -> None:
    found = doctor.limits_of(0, lambda i, j: False)
    assert list(found) == ["memlock", "IPC_LOCK", "InfiniBand", "/dev/shm", "GPU peer access"]
    size = os.statvfs("/dev/shm")
    assert found["/dev/shm"] == doctor.shared_memory(size.f_blocks * size.f_frsize)
