"""Helpers of sandboxes, as processes of this machine."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from rljob_trainer.machine import free_port
from rljob_trainer.processes import ProcessTree
from rljob_trainer.sandboxes.helper import HELPER, token_of
from rljob_trainer.sandboxes.pod import PodSandbox

SECRET, UID = "the job's token", "uid-1"
TOKEN = token_of(SECRET, UID)


PID_1 = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")
"""Put in front of a command, which becomes PID 1 of a PID namespace, as that of a container is. The process is unshare's own."""


def _has_namespaces() -> bool:
    try:
        return subprocess.run([*PID_1, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


needs_pid_namespaces = pytest.mark.skipif(not _has_namespaces(), reason="needs unshare")


@cache
def helper(silence: int | None = None) -> Path:
    """The executable, as the image's Dockerfile compiles it, with all warnings as errors. `silence`: seconds after which it ends, in place of 30."""
    path = Path(mkdtemp()) / "helper"
    source = HELPER.with_suffix(".c")
    flags = [] if silence is None else [f"-DSILENCE_SECONDS={silence}"]
    subprocess.run(["gcc", "-O2", "-static", "-Wall", "-Wextra", "-Werror", *flags, "-o", path, source], check=True)
    return path


@asynccontextmanager
async def running(
    root: Path, port: int = 0, *, silence: int | None = None, under: Sequence[str] = (), wanted: bool = False
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A helper that waits for its claim, with its port. `under`: PID_1, or nothing. `wanted`: it is claimed as soon as it listens, and listens no
    more."""
    port = port or free_port()
    (root / "token").write_text(TOKEN)
    work = root / "work"
    work.mkdir(exist_ok=True)
    family = ProcessTree()  # in place of the container, which ends with its PID 1
    environment = {"PATH": os.environ["PATH"], "HOME": str(work)} | family.environment
    process = await asyncio.create_subprocess_exec(
        *under, helper(silence), root / "token", str(port), cwd=work, env=environment, start_new_session=True
    )
    try:
        if not wanted:
            await asyncio.to_thread(_await_listening, port)
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.to_thread(family.kill)


@asynccontextmanager
async def claimed(root: Path) -> AsyncIterator[PodSandbox]:
    async with running(root) as (_, port):
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        try:
            yield sandbox
        finally:
            await sandbox.close()


def _await_listening(port: int) -> None:
    deadline = time.monotonic() + 30
    while not listens(port):
        assert time.monotonic() < deadline, "the helper does not listen"
        time.sleep(0.01)


def listens(port: int) -> bool:
    """Whether a probe of the kubelet's would say that the sandbox is free."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
