"""The launcher's end of a fork server: keeps it ready, has it fork the processes of an attempt, and kills them; and the fetch of model and data
to the volume before an attempt starts, by node rank 0 in such a process, while the other nodes wait.
"""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.protocol import Failure
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import FORK_SERVER_LOST, LONGEST_TEXT, FailureKind, ended, record
from rljob_trainer.pod.fork_server import ForkRequest
from rljob_trainer.pod.logs import tail
from rljob_trainer.processes import kill_group, start_piped
from rljob_trainer.sources.record import are_fetched, until_fetched

KILL_AGAIN_SECONDS = 0.5
LONGEST_ANSWER = 2**20
"""Bytes of a line: a Failure of bounded texts, in which JSON may write each character as twelve."""
PROCESS = "rljob_trainer.sources.process"


class ForkServerLost(RuntimeError):
    """The fork server ended before it had forked. What its imports printed is in the pod's log."""

    def __init__(self, what: str, code: int, reason: Failure | None = None) -> None:
        """`what` failed. `code`: its exit code; negative: a signal. `reason`: what it has said; None: it ended without a word."""
        said = reason.sentence if reason else f"exit code {code}; the pod's log has the reason"
        super().__init__(f"{what} failed: {said}")
        self.code, self.reason = code, reason

    def as_failure(self) -> Failure:
        """Without the traceback of the launcher."""
        if self.reason:
            return self.reason.model_copy(update={"exception": FORK_SERVER_LOST, "message": str(self)[:LONGEST_TEXT]})
        kind: FailureKind = "killed" if self.code < 0 else "application"
        return Failure(kind=kind, exception=FORK_SERVER_LOST, message=str(self), time=time.time())


class ForkServer:
    """A fork server, which serves one request at a time."""

    def __init__(self, runner: str, module: str, environment: Mapping[str, str]) -> None:
        """`runner`, `module`: see fork_server.py. `environment`: of the fork server, and so of everything that it forks."""
        self.module = module
        self._command = (sys.executable, "-u", "-m", "rljob_trainer.pod.fork_server", runner, module)
        self._environment = dict(environment)
        self._process: Process | None = None
        self._ready = False
        self._starting = asyncio.Lock()
        self.busy = False
        """A request was sent, and the process forked for it has not ended."""
        self._leader: int | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def warm(self) -> None:
        """Start the fork server, which begins to import, unless it is running."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._ready = False
                self._process = await start_piped(self._command, self._environment, LONGEST_ANSWER)

    async def ready(self) -> None:
        """Wait until everything is imported. May be cancelled. Raises ForkServerLost."""
        await self.warm()
        if not self._ready:
            answer = await self._answer()
            if "ready" not in answer:
                raise await self._lost(f"the imports of {self.module}", answer)
        self._ready = True

    async def run(self, request: ForkRequest) -> int:
        """Fork a process for the request and wait for it. Returns its exit code, negative (a signal) when it, or the fork server, was killed. Raises
        ForkServerLost.

        Must not be cancelled: use `kill`, and wait for the result.
        """
        assert self._process and self._process.stdin
        self._process.stdin.write(request.to_line())
        self.busy = True
        forked = await self._answer()
        if "failed" in forked:
            self.busy = False
            raise await self._lost(f"the fork of {self.module}", forked)
        self._leader = forked.get("leader")
        code: int | None = (await self._answer()).get("code")
        self.busy, self._leader = False, None
        return await self._process.wait() if code is None else code

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the group of the forked process, if there is one."""
        if self._leader is not None:
            kill_group(self._leader, number)

    async def kill_until_ended(self, task: asyncio.Task[Any]) -> None:
        """Repeat SIGKILL until `task`, which waits for the forked process, has ended.

        One signal may be lost: while the process is being forked its pid is not known, or does not lead a group yet.
        """
        while not task.done():
            self.kill(signal.SIGKILL)
            await asyncio.wait({task}, timeout=KILL_AGAIN_SECONDS)

    async def close(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _lost(self, what: str, answer: Mapping[str, Any]) -> ForkServerLost:
        """It has answered so in place of doing `what`, or not at all."""
        assert self._process
        code, reason = await self._process.wait(), answer.get("failed")
        return ForkServerLost(what, code, Failure.model_validate(reason) if reason else None)

    async def _answer(self) -> dict[str, Any]:
        """Read the next answer; empty when the fork server is gone."""
        assert self._process and self._process.stdout
        line = await self._process.stdout.readline()
        return dict(json.loads(line)) if line else {}


class ForkServers:
    """The fork servers of ranks and of the driver."""

    def __init__(self, rank: str, driver: str, environment: Mapping[str, str]) -> None:
        self.ranks = ForkServer("rljob_trainer.pod.agent", rank, environment)
        self.driver = ForkServer("rljob_trainer.pod.fork_server", driver, environment)

    @property
    def pids(self) -> set[int]:
        """Children of the launcher that are waited for here."""
        return {server.pid for server in (self.ranks, self.driver) if server.pid}

    async def warm(self, driver: bool) -> None:
        """`driver`: whether this node is likely to have one."""
        await self.ranks.warm()
        if driver:
            await self.driver.warm()

    async def close(self) -> None:
        await self.ranks.close()
        await self.driver.close()


async def obtain(spec: RLJobSpec, fork_server: ForkServer | None, request: ForkRequest, stop: asyncio.Event) -> bool:
    """Wait until all sources of the job are on the volume. Returns False when `stop` came first, or the process that fetches them failed, of which a
    file then says why.

    `fork_server`: forks that process; None on nodes that only wait. `request`: for that process.
    """
    if await asyncio.to_thread(are_fetched, spec.sources.values()):
        return True
    stopped = asyncio.create_task(stop.wait())
    task = asyncio.create_task(_run(fork_server, request) if fork_server else _wait(spec))
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        if fork_server and fork_server.busy:
            await fork_server.kill_until_ended(task)
        task.cancel()
        return False
    code = task.result()
    if code < 0:
        record(Path(request.directory), "fetch", ended(code, None, tail(Path(request.logs[0]))))
    return code == 0


async def _run(fork_server: ForkServer, request: ForkRequest) -> int:
    await fork_server.ready()
    return await fork_server.run(request)


async def _wait(spec: RLJobSpec) -> int:
    await until_fetched(spec.sources.values)
    return 0
