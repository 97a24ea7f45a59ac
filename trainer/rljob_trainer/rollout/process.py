"""A server process: started with its output passed on, its last lines kept, ended with everything it started."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from rljob_api.protocol import Failure

SERVER = "rljob_trainer.rollout.server"
STOP_SECONDS = 20.0
"""Between SIGTERM and SIGKILL."""
KEPT_LINES = 20
KEPT_BYTES = 2**14
USAGE_ERROR = 2
"""argparse's exit code."""


class ServerProcess:
    """Use `start`; then `wait` or `stop`."""

    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.StreamReader) -> None:
        self._process, self._tail = process, b""
        self._output = asyncio.create_task(self._pass_on(output))

    @staticmethod
    async def start(arguments: Sequence[str], environment: Mapping[str, str]) -> "ServerProcess":
        """`arguments`: of vLLM's server. In a session of its own, so that all of it can be killed at once."""
        command = (sys.executable, "-m", SERVER, *arguments)
        output, end = await _pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=dict(environment), stdout=end, stderr=end, start_new_session=True
            )
        finally:
            os.close(end)
        return ServerProcess(process, output)

    async def wait(self) -> int:
        """The exit code, negative for a signal; what the process left behind is killed. vLLM also exits 0 when its engine died."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._output
        return code

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after STOP_SECONDS."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._process.wait()), STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.wait()

    def failure(self, code: int, time: float) -> Failure:
        """Why a server that should have gone on ended, with its last lines."""
        lines = [line[:4096] for line in self._tail.decode(errors="replace").splitlines()[-KEPT_LINES:]]
        if code == USAGE_ERROR:
            message = "vLLM refused its arguments: mend spec.rollout.vllmArgs"
            return Failure(kind="configuration", field="spec.rollout.vllmArgs", message=message, lines=lines, time=time)
        how = f"Signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        kind: Literal["killed", "application"] = "killed" if code < 0 else "application"
        return Failure(kind=kind, exception=how, message="the rollout server ended", lines=lines, time=time)

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        while chunk := await output.read(KEPT_BYTES):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            self._tail = (self._tail + chunk)[-KEPT_BYTES:]


async def _pipe() -> tuple[asyncio.StreamReader, int]:
    """A pipe of our own. With asyncio's, waiting for a process also waits for every child that has inherited the pipe."""
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
    )
    return reader, theirs
