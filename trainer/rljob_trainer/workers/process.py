"""The driver's end of a process that runs what a user wrote, next to the driver or in a pod of its own."""

import asyncio
import contextlib
import json
import logging
import math
import os
import pickle
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from itertools import count
from signal import Signals
from typing import Any, ClassVar, Literal, Protocol, Self

from rljob_api import names
from rljob_trainer.processes import ProcessTable, ProcessTree, end, start_piped

log = logging.getLogger(__name__)

PATHS = "PYTHONPATH"
MAX_PROCESSES = 8
"""In one pod at most, unless the spec has a number; each imports what it runs."""
GRACE_SECONDS = 2.0
"""An async function's process ends its late calls itself, without the others. It is ended as a whole if it does not."""
LOOK_SECONDS = 2.0
"""Interval at which the processes of a worker are counted, while it is called."""
TABLE = ProcessTable()
"""In which all workers look."""
MOST_ORPHANS = 64
"""Daemons of one worker."""
MOST_PROCESSES = 1024
"""Processes of one worker that have not left it."""
END_SECONDS = 5.0
"""Between the last word of a process and its end."""
LINE_LIMIT = 2**26
"""Bytes. The longest lines are token ids of an agent's context."""


class WorkerLost(Exception):
    """The process ended, or did not answer in time."""

    def __init__(self, reason: str, kind: Literal["raised", "timeout"] = "raised"):
        super().__init__(reason)
        self.kind: Literal["raised", "timeout"] = kind


class WorkerRefused(WorkerLost):
    """It could not load what it should run. `details`: what it says of that besides the text, by name."""

    def __init__(self, reason: str, details: Mapping[str, Any]):
        super().__init__(reason)
        self.details = details


class WorkerGone(WorkerLost):
    """The process, or the way to it, ended during the call, and nobody knows by whose fault."""


class WorkerTaken(WorkerGone):
    """It ended for a reason that has nothing to do with the call: its pod leaves, or another call is to blame."""


class Peer(Protocol):
    """A process that answers with lines, wherever it runs."""

    taken: bool
    """The process was taken away, whatever it ran."""

    def write(self, data: bytes) -> None:
        """Without waiting, and for nobody when it is gone: `line` says so."""
        ...

    async def drain(self) -> None:
        """Returns once it has read most of what was written, or will not read it: `line` says so."""
        ...

    @property
    def unread(self) -> int:
        """Bytes that were written and wait in our memory."""
        ...

    async def line(self) -> bytes:
        """Its next line; empty: none will come any more."""
        ...

    async def bound(self) -> None:
        """End what calls have left behind, when it becomes too much. Raises WorkerLost when the function itself keeps too many processes."""
        ...

    async def exit_code(self) -> int | None:
        """How it ended, once there are no lines any more: negative for a signal. None: nobody here knows."""
        ...

    async def stop(self) -> None:
        """Also what the function has started, wherever that went: it would keep running."""
        ...


class Child:
    """A process of ours that runs a user's function, over pipes, and all that it starts."""

    def __init__(self, process: Process, family: ProcessTree):
        self._process, self._family = process, family
        self.taken = False
        self._looked = time.monotonic()
        """When its processes were counted last."""

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        stderr: int | None = None,
    ) -> Self:
        """`stderr`: file descriptor of what it prints; None: ours."""
        command = (sys.executable, "-u", "-m", module, *arguments)  # a killed process would lose buffered prints
        family = ProcessTree()
        environment = _environment(variables or {}) | family.environment
        process = await start_piped(command, environment, LINE_LIMIT, stderr)
        family.lead(process.pid)
        return cls(process, family)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def drain(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            await self._process.stdin.drain()

    @property
    def unread(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.transport.get_write_buffer_size()

    async def line(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def bound(self) -> None:
        """A few daemons may serve many calls."""
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        living = await asyncio.to_thread(TABLE.living, LOOK_SECONDS / 4)
        orphans = self._family.orphans(self._process.pid, living)
        if len(orphans) > MOST_ORPHANS:
            log.warning(
                "%d processes that calls have left behind are ended: at most %d may stay", len(orphans), MOST_ORPHANS
            )
            end(orphans)
        count = len(self._family.members(living)) - len(orphans) - 1
        if count > MOST_PROCESSES:
            raise WorkerLost(f"its process has started {count} others that still run; at most {MOST_PROCESSES} may")

    async def exit_code(self) -> int | None:
        """Of a process that says nothing more; negative: a signal. None: it has only closed its end of the pipe."""
        try:
            return await asyncio.wait_for(self._process.wait(), END_SECONDS)
        except TimeoutError:
            return None

    async def stop(self) -> None:
        await asyncio.to_thread(self._family.kill)
        await self._process.wait()


class WorkerProcess:
    """One life of it, from `start` to `stop`."""

    MODULE: ClassVar[str]
    """What it runs."""
    START_SECONDS: ClassVar[float] = 60.0

    def __init__(self, peer: Peer, seconds: float):
        self._peer, self._seconds = peer, seconds
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers, self._sending = count(), asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._look: asyncio.Task[None] | None = None
        """For what calls have left behind."""
        self.takes: Sequence[str] = ()
        """Names of what the function is called with."""
        self.hello: dict[str, Any] = {}
        """All that it said of itself."""
        self.concurrent = False
        """It may be asked again before it has answered: the function is async."""

    @classmethod
    async def start(cls, arguments: Sequence[str], seconds: float, variables: Mapping[str, str] | None = None) -> Self:
        """`arguments`: of the process. `seconds` limits one call. Raises WorkerLost with what the file's import said."""
        return await cls.greeted(await Child.start(cls.MODULE, arguments, variables), seconds)

    @classmethod
    async def greeted(cls, peer: Peer, seconds: float) -> Self:
        """The process that has just been started. Raises WorkerLost, after which it is stopped."""
        worker = cls(peer, seconds)
        try:
            await worker._greet()
        except BaseException:
            await worker.stop()
            raise
        return worker

    @property
    def room(self) -> int:
        """Calls at a time."""
        return 1

    @property
    def ended(self) -> bool:
        """No call will be answered any more."""
        return self._reader is None or self._reader.done()

    async def end(self) -> None:
        """Returns once no call will be answered any more."""
        if self._reader:
            await asyncio.wait([self._reader])

    async def call(self, values: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """The function's answer. `seconds`: a limit of this call's own. Raises WorkerLost, after which it has to be stopped."""
        if self.ended:
            raise WorkerTaken("its process is gone")
        limit = seconds or self._seconds + (GRACE_SECONDS if self.concurrent else 0.0)
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # lost before it was sent, too
        try:
            await self._send((number, values))
            returned = await asyncio.wait_for(answer, limit)
        except TimeoutError as error:
            raise WorkerLost(f"took longer than {self._seconds:g} s", "timeout") from error
        finally:
            self._calls.pop(number, None)
        self._bound_processes()
        return returned

    async def _send(self, message: Any) -> None:
        """Once it has read most of what was sent before, so that no more than one message waits in memory, however many calls there are. A process
        that reads nothing for longer than a call may take is stopped: its calls raise WorkerTaken."""
        async with self._sending:
            if not await self._drained():
                log.warning("a process has read nothing for %g s, and is given up", self._seconds + GRACE_SECONDS)
                await self.stop()
            if not self.ended:
                self._peer.write(pickle.dumps(message))

    async def _drained(self) -> bool:
        """False: it has read nothing for longer than a call may take. One that reads slowly may take longer for a large message."""
        left = math.inf
        while self._peer.unread < left:
            left = self._peer.unread
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                    await self._peer.drain()
                    return True
        return False

    def _bound_processes(self) -> None:
        """Look for what calls have left behind: no answer waits for that. Raises WorkerLost when the last look has found too much."""
        if self._look:
            if not self._look.done():
                return
            self._look.result()
        if not self.ended:
            self._look = asyncio.create_task(self._peer.bound())
            self._look.add_done_callback(lambda done: done.cancelled() or done.exception())  # no further call may ask

    async def stop(self) -> None:
        """Also what the function has started, wherever that went: it would keep running. Calls under way raise WorkerLost."""
        self._peer.taken = True
        if self._look:
            self._look.cancel()
        await self._peer.stop()
        await self.end()

    async def _greet(self) -> None:
        try:
            line = await asyncio.wait_for(self._peer.line(), self.START_SECONDS)
        except TimeoutError as error:
            raise WorkerLost(f"took longer than {self.START_SECONDS:g} s to be imported", "timeout") from error
        if not line:
            raise _ended_early(await self._peer.exit_code())
        hello = hello_of(line)
        self.takes, self.concurrent, self.hello = hello["takes"], hello["concurrent"], hello
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Hand out answers until the process ends. Nobody waits any more for one that comes late."""
        try:
            while line := await self._peer.line():
                self._received(json.loads(line))
        finally:
            lost = WorkerTaken if self._peer.taken else WorkerGone
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(lost("its process ended during the call"))

    def _received(self, reply: dict[str, Any]) -> None:
        call = self._calls.get(reply.pop("number"))
        if call and not call.done():
            call.set_result(reply)


def hello_of(line: bytes) -> dict[str, Any]:
    """What a process says first. Raises WorkerRefused when it could not load what it should run, and WorkerLost."""
    try:
        hello: dict[str, Any] = json.loads(line)
        missing = {"takes", "concurrent"} - hello.keys()
    except (ValueError, AttributeError):
        hello, missing = {}, {"takes", "concurrent"}
    if "error" in hello:
        raise WorkerRefused(str(hello.pop("error")), hello)
    if missing:
        raise WorkerLost(
            f"its process has said {line[:200]!r} in place of what it has loaded; is its image of this release?"
        )
    return hello


def _ended_early(code: int | None) -> WorkerLost:
    """Of a process that ended while it was imported. One that exits would do so every time; one that is killed need not."""
    if code is None:
        return WorkerGone("its process ended while it was imported")
    if code < 0:
        return WorkerGone(f"its process was ended by signal {-code} ({Signals(-code).name}) while it was imported")
    return WorkerLost(f"its process ended with exit code {code} while it was imported; the log has what it printed")


def processes_on(cpus: int) -> int:
    """How many processes of workers run on so many CPUs, where the spec has no number."""
    return max(1, min(cpus, MAX_PROCESSES))


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Our own with these, without the token of the rollout servers. Packages are looked for in the given PYTHONPATH first, and then in our own: an
    image may have this package there."""
    own = {k: v for k, v in os.environ.items() if k != names.ENV_ROLLOUT_TOKEN}
    paths = [given[PATHS] for given in (variables, own) if given.get(PATHS)]
    return {**own, **variables, PATHS: os.pathsep.join(paths)} if paths else {**own, **variables}
