"""A sandbox of the local run: a directory of this machine. It keeps nothing from anybody: programs run as you, with your files and your network.

Only what is left behind is the same as in pods: when it is given back, its processes end, and its files are deleted.
"""

import asyncio
import errno
import os
import selectors
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE

from rljob_trainer.machine import loopback
from rljob_trainer.processes import ProcessTree, kill_group
from rljob_trainer.sandboxes.http import asked
from rljob_trainer.sandboxes.sandbox import MOST_BYTES, EndedProgram, SandboxError

POLL_SECONDS = 0.02
"""Interval at which is looked whether a program has ended."""

PIECE = 65536


class DirectorySandbox:
    """As sandbox.ClaimedSandbox."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="sandbox-"))
        self._family, self._one_by_one = ProcessTree(), asyncio.Lock()

    async def run(self, command: Sequence[str], seconds: float, stdin: bytes, most: int) -> EndedProgram:
        known = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._root)} | self._family.environment
        async with self._one_by_one:
            try:
                process = await asyncio.to_thread(_started, command, self._root, known)
            except (OSError, ValueError) as error:  # as a shell would say it
                return EndedProgram(127, "", b"", f"{command[0]}: {error}".encode())
            try:
                return await asyncio.to_thread(_Followed(process, stdin, most).until, seconds)
            except asyncio.CancelledError:
                kill_group(process.pid, signal.SIGKILL)  # the thread ends with it
                raise

    async def write(self, path: str, content: bytes) -> None:
        try:
            await asyncio.to_thread(_write, self._root / path, content)
        except (OSError, ValueError) as error:
            raise SandboxError(f"{path}: {error}") from error

    async def read(self, path: str) -> bytes:
        try:
            content = await asyncio.to_thread(_read, self._root / path)
        except (OSError, ValueError) as error:
            raise SandboxError(f"{path}: {error}") from error
        if len(content) > MOST_BYTES:
            raise SandboxError(f"{path}: has more than {MOST_BYTES} bytes")
        return content

    async def http(
        self, method: str, port: int, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        address = loopback()
        return await asked(f"[{address}]" if ":" in address else address, method, port, path, body, headers, seconds)

    async def close(self) -> None:
        await asyncio.to_thread(self._family.kill)
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb", opener=_regular) as opened:
        os.fchmod(opened.fileno(), 0o755)
        opened.truncate(0)
        opened.write(content)


def _read(file: Path) -> bytes:
    """Up to one byte more than is allowed."""
    with open(file, "rb", opener=_regular) as opened:
        return opened.read(MOST_BYTES + 1)


def _regular(path: str, flags: int) -> int:
    """A program may have put anything there: a pipe would be waited for."""
    file = os.open(path, (flags & ~os.O_TRUNC) | os.O_NONBLOCK, 0o755)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no regular file")
    return file


def _started(command: Sequence[str], root: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=root, env=variables, start_new_session=True
    )


class _Followed:
    """A program that runs, over pipes. All of this blocks, for a thread."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, most: int):
        assert process.stdin and process.stdout and process.stderr
        self._process, self._left, self._most = process, memoryview(stdin), most
        self._input, self._outputs = process.stdin, (process.stdout, process.stderr)
        self._said = {pipe.fileno(): bytearray() for pipe in self._outputs}
        self._pipes = selectors.DefaultSelector()
        for pipe in (self._input, *self._outputs):
            os.set_blocking(pipe.fileno(), False)
            self._pipes.register(pipe, selectors.EVENT_WRITE if pipe is self._input else selectors.EVENT_READ)

    def until(self, seconds: float) -> EndedProgram:
        """It ends, its time is over, or it has said too much. What it has started in the background keeps nobody waiting."""
        end = time.monotonic() + seconds
        while self._process.poll() is None and not self._floods and time.monotonic() < end:
            self._exchange(POLL_SECONDS)
        late = self._process.poll() is None
        if late:
            kill_group(self._process.pid, signal.SIGKILL)
        while not late and not self._floods and self._exchange(0):  # what it said last
            continue
        code = self._process.wait()
        self._pipes.close()
        for pipe in (self._input, *self._outputs):
            pipe.close()
        output, errors = (bytes(said[: self._most]) for said in self._said.values())
        return EndedProgram(code, "output" if self._floods else "timeout" if late else "", output, errors)

    @property
    def _floods(self) -> bool:
        return any(len(said) > self._most for said in self._said.values())

    def _exchange(self, seconds: float) -> bool:
        """Whether it has said something."""
        heard = False
        for key, _ in self._pipes.select(seconds):
            if key.fileobj is self._input:
                self._give()
            elif more := self._taken(key.fd):
                self._said[key.fd] += more
                heard = True
            else:
                self._pipes.unregister(key.fileobj)
        return heard

    def _give(self) -> None:
        try:
            self._left = self._left[os.write(self._input.fileno(), self._left) :] if self._left else self._left
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self._pipes.unregister(self._input)
            self._input.close()

    def _taken(self, pipe: int) -> bytes:
        room = self._most + 1 - len(self._said[pipe])
        return os.read(pipe, min(PIECE, room)) if room > 0 else b""
