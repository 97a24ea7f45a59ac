"""The launcher's end of the nursery: keeps one ready, has it fork an attempt's ranks, and knows whom to kill."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping

from rljob_trainer.launcher.order import Order
from rljob_trainer.launcher.processes import kill_group


class NurseryLost(RuntimeError):
    """It ended before it could fork. What its imports said is in the pod's output."""


class Nursery:
    """One attempt at a time."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """`module`: what a rank runs. `environment`: of the nursery, and so of all ranks."""
        self._command = (sys.executable, "-u", "-m", "rljob_trainer.launcher.nursery", module)
        self._environment = dict(environment)
        self._process: Process | None = None
        self._ready = False
        self.busy = False
        """An order was given and its ranks have not ended."""
        self._agent: int | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def warm(self) -> None:
        """Start importing, unless one that lives has."""
        if self._process is None or self._process.returncode is not None:
            self._ready = False
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environment, stdin=PIPE, stdout=PIPE, start_new_session=True
            )

    async def ready(self) -> None:
        """Until everything is imported. May be cancelled. Raises NurseryLost."""
        await self.warm()
        if not self._ready and await self._answer("ready") is None:
            assert self._process
            code = await self._process.wait()
            raise NurseryLost(f"a rank's imports failed with exit code {code}; the pod's log has the reason")
        self._ready = True

    async def run(self, order: Order) -> int:
        """The exit code of torchrun's agent; negative (a signal) when it, or the nursery with it, was killed. Not to be cancelled: kill it."""
        assert self._process and self._process.stdin
        self._process.stdin.write(order.to_line())
        self.busy = True
        self._agent = await self._answer("agent")
        code = await self._answer("code")
        self.busy, self._agent = False, None
        return await self._process.wait() if code is None else code

    def kill(self, number: signal.Signals) -> None:
        """Signal the agent and its ranks, if there are any."""
        if self._agent is not None:
            kill_group(self._agent, number)

    async def close(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _answer(self, key: str) -> int | None:
        """None when the nursery is gone."""
        assert self._process and self._process.stdout
        line = await self._process.stdout.readline()
        return int(json.loads(line)[key]) if line else None
