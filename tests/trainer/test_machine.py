"""Addresses of this machine, seen by real sockets, and the CPUs that a container may use."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_trainer.machine import (
    any_address,
    cpus,
    has_cuda_compiler,
    interface_of,
    loopback,
    memory_limit,
    memory_used,
    oom_kills,
)

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_is_found_on_its_interface(address: str) -> None:
    assert interface_of(address) == "lo"


def test_nobody_has_an_address_of_another_machine() -> None:
    assert interface_of("2001:db8::7") is None


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_what_is_bound_to_any_address_is_reached_by_both_families(address: str) -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind((any_address(), 0))
        listener.listen()
        socket.create_connection((address, listener.getsockname()[1]), timeout=5).close()


def test_the_loopback_of_a_machine_with_ipv4_is_that() -> None:
    assert loopback() == "127.0.0.1"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("6400000 100000", 8), (None, 8)],
)
def test_a_container_may_use_the_cpus_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    if quota:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert cpus(tmp_path) == expected


def test_processes_that_the_kernel_killed_for_memory_are_counted_with_both_versions_of_cgroups(tmp_path: Path) -> None:
    assert (oom_kills(tmp_path), memory_limit(tmp_path)) == (0, None)
    old, new = tmp_path / "1", tmp_path / "2"
    (old / "memory").mkdir(parents=True)
    (old / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (old / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert (oom_kills(old), memory_limit(old)) == (3, None)
    new.mkdir()
    (new / "memory.events").write_text("low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n")
    (new / "memory.max").write_text("max\n")
    assert (oom_kills(new), memory_limit(new)) == (2, None)
    (new / "memory.max").write_text("34359738368\n")
    assert memory_limit(new) == 32 * 2**30


OPENING = """
import resource
from rljob_trainer.machine import most_open_files, raise_open_files
raise_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), most_open_files())
"""


def test_a_process_may_open_as_many_files_as_the_machine_allows() -> None:
    """A driver has a connection for each process of its workers."""
    limited = ("sh", "-c", 'ulimit -S -n 64; exec "$0" -c "$1"', sys.executable, OPENING)
    soft, hard, most = subprocess.run(limited, capture_output=True, text=True, check=True).stdout.split()
    assert soft == hard == most and int(soft) > 64


def test_what_a_container_holds_is_counted_without_copies_of_files(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    (old / "memory").mkdir(parents=True)
    new.mkdir()
    assert memory_used(tmp_path) == 0
    (new / "memory.current").write_text("1000\n")
    (new / "memory.stat").write_text("anon 600\ninactive_file 250\nactive_file 50\n")
    (old / "memory" / "memory.usage_in_bytes").write_text("900\n")
    (old / "memory" / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 300\n")
    assert (memory_used(new), memory_used(old)) == (700, 500)


@pytest.mark.parametrize(
    ("variable", "below", "found"),
    [("CUDA_HOME", "bin", True), ("CUDA_PATH", "bin", True), ("PATH", "", True), ("CUDA_HOME", "", False)],
)
def test_nvcc_is_found_where_deep_gemm_looks_for_it(
    variable: str, below: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv(variable, str(tmp_path))
    nvcc = tmp_path / below / "nvcc"
    nvcc.parent.mkdir(exist_ok=True)
    nvcc.touch(mode=0o755)
    assert has_cuda_compiler() == found
