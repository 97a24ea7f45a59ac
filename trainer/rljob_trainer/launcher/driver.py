"""The driver's process: in a session of its own, its output in a file."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path

from rljob_trainer.launcher.processes import kill_group
from rljob_trainer.launcher.tied import command


class DriverProcess:
    """Use `start`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @staticmethod
    async def start(module: str, environment: Mapping[str, str], log: Path) -> "DriverProcess":
        with log.open("ab") as output:
            return DriverProcess(
                await asyncio.create_subprocess_exec(
                    *command(module), env=dict(environment), stdout=output, stderr=output, start_new_session=True
                )
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal. What the driver started ends with it."""
        code = await self._process.wait()
        self.kill(signal.SIGKILL)
        return code

    def kill(self, number: signal.Signals) -> None:
        kill_group(self._process.pid, number)
