"""What a sandbox does, in a pod by its helper and in a local run in a directory: the same, but for isolation."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from rljob_trainer.machine import free_port
from rljob_trainer.sandboxes.directory import DirectorySandbox
from rljob_trainer.sandboxes.sandbox import MOST_BYTES, ClaimedSandbox, SandboxError
from trainer.sandboxes.helpers import claimed

SHELL = ("sh", "-c")
SERVER = f"{sys.executable} -m http.server PORT --bind 0.0.0.0 > log 2>&1 &"


@asynccontextmanager
async def sandbox_of(kind: str, root: Path) -> AsyncIterator[ClaimedSandbox]:
    if kind == "pod":
        async with claimed(root) as sandbox:
            yield sandbox
    else:
        directory = DirectorySandbox()
        try:
            yield directory
        finally:
            await directory.close()


both = pytest.mark.parametrize("kind", ["pod", "directory"])


@both
async def test_a_program_that_was_written_is_run_and_what_it_writes_is_read(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        await sandbox.write(
            "src/main.py", b"import sys; print(2 * int(input())); open('out', 'wb').write(bytes(3)); sys.exit(7)"
        )
        ended = await sandbox.run([sys.executable, "src/main.py"], 30, b"21\n", 1000)
        assert (ended.code, ended.reason, ended.output, ended.errors) == (7, "", b"42\n", b"")
        assert await sandbox.read("out") == b"\0\0\0"
        await sandbox.write("src/main.py", b"")
        assert await sandbox.read("src/main.py") == b"", "shorter than before"


@both
async def test_a_file_that_is_written_may_be_executed_also_where_there_was_one(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        await sandbox.run([*SHELL, "echo old > program; chmod 644 program"], 30, b"", 100)
        await sandbox.write("program", b"#!/bin/sh\necho new\n")
        assert (await sandbox.run(["./program"], 30, b"", 100)).output == b"new\n"


@both
async def test_words_are_no_shell_s_and_errors_are_apart(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        ended = await sandbox.run(["printf", "%s|", "$HOME; ls", "*", ""], 30, b"", 100)
        assert ended.output == b"$HOME; ls|*||"
        ended = await sandbox.run([*SHELL, "pwd -P; echo wrong >&2; kill -9 $$"], 30, b"", 1000)
        assert ended.code == -9 and ended.errors == b"wrong\n" and ended.output.startswith(b"/")


@both
async def test_a_program_that_there_is_not_says_so(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        ended = await sandbox.run(["no-such-program"], 30, b"", 1000)
        assert ended.code == 127 and b"no-such-program" in ended.errors


@both
async def test_one_that_takes_too_long_is_ended_with_its_children_and_the_sandbox_is_not(
    kind: str, tmp_path: Path
) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        ended = await asyncio.wait_for(sandbox.run([*SHELL, "echo begun; sleep 600 | sleep 600"], 0.5, b"", 1000), 30)
        assert (ended.code, ended.reason, ended.output) == (-9, "timeout", b"begun\n")
        assert (await sandbox.run(["echo", "on"], 30, b"", 10)).output == b"on\n"


@both
async def test_one_that_floods_is_ended_and_its_beginning_is_kept(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        ended = await asyncio.wait_for(sandbox.run(["yes"], 60, b"", 1000), 30)
        assert (ended.code, ended.reason, ended.output) == (-9, "output", 500 * b"y\n")
        exact = await sandbox.run(["printf", "%0100d", "0"], 60, b"", 100)
        assert (exact.code, exact.reason, len(exact.output)) == (0, "", 100)


@both
async def test_what_goes_on_in_the_background_keeps_nobody_waiting_and_can_be_asked(kind: str, tmp_path: Path) -> None:
    port = free_port()
    async with sandbox_of(kind, tmp_path) as sandbox:
        await sandbox.write("index.html", b"<p>hello")
        ended = await asyncio.wait_for(sandbox.run([*SHELL, SERVER.replace("PORT", str(port))], 60, b"", 1000), 20)
        assert ended.code == 0
        found = await asyncio.wait_for(_answer(sandbox, port), 30)
        assert found == (200, b"<p>hello")
        assert (await sandbox.http("GET", port, "nothing", b"", {}, 10))[0] == 404
    with pytest.raises(SandboxError):
        await sandbox.http("GET", port, "/", b"", {}, 10)


async def _answer(sandbox: ClaimedSandbox, port: int) -> tuple[int, bytes]:
    """Once the server listens."""
    while True:
        try:
            return await sandbox.http("GET", port, "/index.html", b"", {}, 10)
        except SandboxError:
            await asyncio.sleep(0.05)


@both
async def test_input_that_nobody_reads_and_binary_input_are_no_trouble(kind: str, tmp_path: Path) -> None:
    whole = bytes(range(256)) * (MOST_BYTES // 256)
    async with sandbox_of(kind, tmp_path) as sandbox:
        assert (await sandbox.run(["true"], 30, whole, 10)).code == 0
        ended = await sandbox.run(["cat"], 30, whole, MOST_BYTES)
        assert ended.code == 0 and ended.output == whole
        await sandbox.write("whole", whole)
        assert await sandbox.read("whole") == whole


@both
async def test_files_that_cannot_be_are_named_and_none_is_waited_for(kind: str, tmp_path: Path) -> None:
    async with sandbox_of(kind, tmp_path) as sandbox:
        await sandbox.run(
            [*SHELL, f"mkfifo pipe; mkdir there; head -c {MOST_BYTES + 1} /dev/zero > large"], 30, b"", 100
        )
        for path in ("pipe", "there", "absent", "large"):
            with pytest.raises(SandboxError, match=path):
                await asyncio.wait_for(sandbox.read(path), 10)
        for path in ("pipe", "there", "large/below"):
            with pytest.raises(SandboxError, match=path):
                await asyncio.wait_for(sandbox.write(path, b""), 10)


async def test_what_is_left_in_a_directory_when_it_is_given_back_ends_and_is_deleted() -> None:
    """In a pod the container ends with its PID 1."""
    sandbox = DirectorySandbox()
    ended = await sandbox.run([*SHELL, "pwd -P; setsid sleep 600 >&- 2>&- <&- & echo $!"], 30, b"", 1000)
    root, pid = ended.output.decode().split()
    assert is_there(root) and psutil.Process(int(pid)).is_running()
    await sandbox.close()
    assert not is_there(root) and (not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie")


def is_there(path: str) -> bool:
    return Path(path).exists()
