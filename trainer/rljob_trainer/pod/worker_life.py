"""One process of a worker pod: it has a connection to the driver (workers/remote.py), and runs until it or the connection ends; then the next
one begins."""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rljob_api import names
from rljob_api.protocol import Control, Failure
from rljob_api.spec import RLJobSpec
from rljob_api.text import join_host_port
from rljob_trainer import failure
from rljob_trainer.agents.program import MODULE, Program
from rljob_trainer.machine import cpus, memory_limit, oom_kills
from rljob_trainer.output import ChildOutput, pipe
from rljob_trainer.rewards import request
from rljob_trainer.wire.channel import encode
from rljob_trainer.workers.process import LINE_LIMIT, LOOK_SECONDS, Child, WorkerLost, hello_of, processes_on
from rljob_trainer.workers.remote import BEAT, BEAT_SECONDS, GOODBYE, SILENCE_SECONDS, frame, framed

PIECE = 2**16
RETRY_SECONDS = 0.5
"""Between two tries to connect: a driver that starts does not listen yet."""
LONGEST_RETRY_SECONDS = 8.0
"""Once they have failed long enough to be reported."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0
"""Between two lives; doubled each time, until one has loaded what it runs."""
REFUSALS, UNREACHED = 20, 120
"""In a row, after which they are reported: a driver that ends or begins refuses some, and one begins late."""
HANGUPS = 3
"""Connections in a row that ended before a process had loaded what it runs, after which that is reported: the end of an attempt is one."""
REFUSED = "the driver does not let this pod in: its token is not the trainer's; suspend and resume the job, and all pods get the same"
HUNG_UP = "the driver has closed the connection before the process had loaded what it runs"
log = logging.getLogger(__name__)


async def connected(
    driver: tuple[str, int], role: str, attempt: int, environment: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the driver has accepted. `driver`: address and port. `role`: of the pod, which `environment` names, with the token
    (names.ENV_*). Raises OSError; EOFError when it was refused; ValueError."""
    reader, writer = await asyncio.open_connection(*driver)
    try:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE_SECONDS))
        token, pod = environment[names.ENV_ROLLOUT_TOKEN], environment[names.ENV_POD_NAME]
        writer.write(encode({"role": role, "attempt": attempt, "token": token, "pod": pod}))
        async with asyncio.timeout(SILENCE_SECONDS):
            await frame(reader)
    except BaseException:
        writer.close()
        raise
    return reader, writer


class Relay:
    """Between one process and the driver."""

    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loaded: Callable[[], None]
    ) -> None:
        """`loaded` is called once the process has loaded what it runs."""
        self._child, self._reader, self._writer, self._loaded = child, reader, writer, loaded
        self._said = ""

    async def run(self) -> str | None:
        """Returns when one of them ends: None, the connection; empty, the process, without a word; else what is wrong with the process. When
        cancelled, it tells the driver that the pod leaves."""
        process = [asyncio.create_task(part) for part in (self._up(), self._bound())]
        connection = [asyncio.create_task(part) for part in (self._down(), self._beat())]
        try:
            done, _ = await asyncio.wait([*process, *connection], return_when=asyncio.FIRST_COMPLETED)
            ended = any(part in done and not part.exception() for part in process)
            return self._said if ended or self._said else None
        except asyncio.CancelledError:
            self._writer.write(framed(GOODBYE))
            raise
        finally:
            for part in (*process, *connection):
                part.cancel()
            await asyncio.gather(*process, *connection, return_exceptions=True)

    async def _up(self) -> None:
        """Returns when the process says nothing more. Raises ConnectionError."""
        line = await self._line()
        if line:
            try:
                hello_of(line)
                self._loaded()
            except WorkerLost as error:
                self._said = str(error)
        while line:
            self._writer.write(framed(line))
            await self._writer.drain()
            line = await self._line()

    async def _line(self) -> bytes:
        try:
            return await self._child.line()
        except ValueError:
            self._said = f"the process has said more than {LINE_LIMIT >> 20} MiB at once"
            return b""

    async def _bound(self) -> None:
        """Returns when the process has too many others."""
        while not self._said:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._child.bound()
            except WorkerLost as error:
                self._said = str(error)

    async def _down(self) -> None:
        while data := await self._reader.read(PIECE):
            self._child.write(data)
            await self._child.drain()

    async def _beat(self) -> None:
        while True:
            self._writer.write(BEAT)
            await self._writer.drain()
            await asyncio.sleep(BEAT_SECONDS)


class WorkerOrders(NamedTuple):
    """What this pod has to run."""

    attempt: int
    address: str
    """Of the driver."""
    port: int
    role: str
    """Of this pod."""
    module: str
    command: tuple[str, ...]
    """Arguments of each process, which runs this module."""
    variables: Mapping[str, str]
    processes: int

    @classmethod
    def of(cls, control: Control | None, role: str) -> "WorkerOrders | None":
        """None: no attempt runs, or the job has no such workers any more. What else the spec says, such as how many pods there are, is no matter of
        this one."""
        if control is None or control.command == "stop" or not control.service_port:
            return None
        workers, trainer = control.spec.workers.get(role), control.gangs.get(names.ROLE_TRAINER)
        if workers is None or trainer is None:
            return None
        count = workers.processes or processes_on(cpus())
        return cls(control.attempt, trainer.address, control.service_port, role, *_program(control.spec, role), count)


def _program(spec: RLJobSpec, role: str) -> tuple[str, tuple[str, ...], Mapping[str, str]]:
    """Module, arguments and variables of the processes."""
    if role == names.ROLE_WORKER:
        assert spec.rollout.agent, "it has workers"
        return MODULE, Program.of(spec.rollout.agent).command, spec.rollout.agent.env
    reward = spec.rewards[names.scorer_index(role)]
    function = request.python_of(reward)
    assert function, "the spec was checked: only these have workers"
    return request.MODULE, request.command(function, reward.timeout_seconds), {}


class WorkerLife:
    """`run` keeps one process running until it is cancelled."""

    def __init__(self, orders: WorkerOrders, environment: Mapping[str, str], changed: Callable[[], None]) -> None:
        """`environment`: names the pod and has the token (names.ENV_*). `changed` is called when what follows here is another."""
        self._orders, self._environment, self._changed = orders, environment, changed
        self.has_loaded = False
        """The process that runs has loaded what it should run."""
        self.failure: Failure | None = None
        """Why there is none that has."""
        self.pid: int | None = None
        self._backoff, self._hangups = FIRST_BACKOFF_SECONDS, 0

    async def run(self) -> None:
        while True:
            reader, writer = await self._connected()
            try:
                why = await self._one(reader, writer)
            finally:
                writer.close()
            self._ended(why)
            await asyncio.sleep(self._backoff)
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF_SECONDS)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the driver, however long that takes."""
        driver, pause = (self._orders.address, self._orders.port), RETRY_SECONDS
        failed, refused = 0, False
        while True:
            try:
                return await connected(driver, self._orders.role, self._orders.attempt, self._environment)
            except (OSError, EOFError, ValueError) as error:
                failed = 1 + (failed if refused is isinstance(error, EOFError) else 0)
                refused = isinstance(error, EOFError)
                why = REFUSED if refused else f"cannot reach the driver at {join_host_port(*driver)}: {error}"
            most = REFUSALS if refused else UNREACHED
            if failed == most:
                self._fail(said(why))
            if failed >= most:
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Failure | None:
        """Run one process until it ends or the connection does. Why it failed; None: it did not."""
        kills = oom_kills()
        try:
            child, output = await self._start()
        except (OSError, ValueError) as error:  # such as more variables, or processes, than the kernel allows
            return said(f"the process cannot be started: {error}")
        self.pid = child.pid
        try:
            spoken = await Relay(child, reader, writer, self._loaded).run()
            if spoken is None:
                return None
            why = said(spoken) if spoken else await _how_it_ended(child, output)
            return failure.with_memory(why, oom_kills() - kills, memory_limit())
        finally:
            await child.stop()
            self.pid = None

    async def _start(self) -> tuple[Child, ChildOutput]:
        reader, end = await pipe()
        try:
            child = await Child.start(self._orders.module, self._orders.command, self._orders.variables, end)
        finally:
            os.close(end)
        return child, ChildOutput(reader, sys.stderr.buffer)

    def _loaded(self) -> None:
        self.has_loaded, self.failure = True, None
        self._backoff, self._hangups = FIRST_BACKOFF_SECONDS, 0
        self._changed()

    def _ended(self, why: Failure | None) -> None:
        """`why`: the process failed. None: the connection has ended."""
        if why is None and not self.has_loaded:
            self._hangups += 1
            why = said(HUNG_UP) if self._hangups >= HANGUPS else None
        self.has_loaded = False
        self._changed()
        if why:
            self._fail(why)

    def _fail(self, why: Failure) -> None:
        log.warning("%s: %s", why.exception, why.message)
        self.failure = why
        self._changed()


def said(text: str) -> Failure:
    return Failure(kind="application", exception="WorkerFailed", message=text[: failure.LONGEST_TEXT], time=time.time())


async def _how_it_ended(child: Child, output: ChildOutput) -> Failure:
    """Of a process that says nothing more."""
    code = await child.exit_code()
    if code is None:
        return said("the process has closed its end of the pipe")
    await output.close()
    return failure.ended(code, None, output.text)
