"""Runs a user's reward function in worker processes, over pipes, so that it cannot corrupt, block or end the driver."""

import asyncio
import json
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.spec.model import PythonReward
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.processes import kill_group
from rljob_trainer.rewards.arguments import INTERFACES, READ_FROM_FILES, arguments
from rljob_trainer.rewards.request import Kind, Reward, RewardFailed, RewardRequest

START_SECONDS = 60.0
LINE_LIMIT = 2**20


class WorkerLost(Exception):
    """The process ended, or did not answer in time."""

    def __init__(self, reason: str, kind: Kind = "raised"):
        super().__init__(reason)
        self.kind: Kind = kind


class PythonFile:
    """A file that `field` of the spec means by `target`, in `workers` processes that share the calls.

    A call that takes longer than `seconds` ends its process; the next call starts another.
    """

    def __init__(self, field: str, target: str, spec: PythonReward, seconds: float, workers: int):
        self._field, self._target, self._spec, self._seconds = field, target, spec, seconds
        self._known = INTERFACES[spec.interface]
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers = [_Worker(spec) for _ in range(workers)]

    async def start(self) -> None:
        """Raises ConfigurationError when the file is missing, cannot be imported, or lacks a function that can be called."""
        self._require_file()
        started = await asyncio.gather(*(worker.start() for worker in self._workers), return_exceptions=True)
        for error in filter(None, started):
            raise ConfigurationError(
                self._field, self._target, f"cannot be loaded: {error}", self._fix(error)
            ) from error
        for worker in self._workers:
            self._idle.put_nowait(worker)

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed."""
        values = await self._values(request)
        worker = await self._idle.get()
        try:
            reply = await worker.call(values, self._seconds)
        except WorkerLost as error:
            raise RewardFailed(error.kind, self._field, self._target, str(error)) from error
        finally:
            self._idle.put_nowait(worker)
        if "error" in reply:
            raise RewardFailed(reply["kind"], self._field, self._target, reply["error"])
        return Reward(reply["score"], reply["metrics"])

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def _values(self, request: RewardRequest) -> dict[str, Any]:
        """What the function takes. Reading a file may wait for its volume, and is not on the function's clock."""
        takes = self._workers[0].takes
        if READ_FROM_FILES.isdisjoint(takes):
            return arguments(request, self._known, takes)
        return await asyncio.to_thread(arguments, request, self._known, takes)

    def _fix(self, error: BaseException) -> str:
        if self._spec.interface != "verl" and "'solution_str'" in str(error):
            return "a function that was written for verl needs interface: verl beside its path"
        return "fix the file; it is imported by itself, with the image's packages"

    def _require_file(self) -> None:
        if not Path(self._spec.path).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise ConfigurationError(self._field, self._target, "there is no such file in the trainer pod", fix)


class _Worker:
    """One process. Not for concurrent use."""

    def __init__(self, spec: PythonReward):
        self._spec = spec
        self._process: Process | None = None
        self.takes: Sequence[str] = ()
        """Names of what the function is called with, once it was started."""

    async def start(self) -> None:
        """Raises WorkerLost with what the file's import said."""
        module = "rljob_trainer.rewards.worker"
        known = ",".join(INTERFACES[self._spec.interface])
        command = (sys.executable, "-m", module, self._spec.path, self._spec.function_name, known)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, env=_environment(), limit=LINE_LIMIT, start_new_session=True
        )
        reply = await self._answer(START_SECONDS)
        if "error" in reply:
            await self.stop()
            raise WorkerLost(reply["error"])
        self.takes = reply["takes"]

    async def call(self, values: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The process's answer. Raises WorkerLost, after which the next call starts a new process."""
        if self._process is None:
            await self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(pickle.dumps(values))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await self._lost("its process is gone") from error
        return await self._answer(seconds)

    async def stop(self) -> None:
        """Also what the function has started: a program that it runs would keep running."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_group(process.pid, signal.SIGKILL)
        await process.wait()

    async def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        except TimeoutError as error:
            raise await self._lost(f"took longer than {seconds:g} s", "timeout") from error
        except asyncio.CancelledError:
            await self.stop()  # its answer would be taken for the next call's
            raise
        if not line:
            raise await self._lost("its process ended during the call")
        return json.loads(line)

    async def _lost(self, reason: str, kind: Kind = "raised") -> WorkerLost:
        await self.stop()
        return WorkerLost(reason, kind)


def _environment() -> dict[str, str]:
    """Our own, without the token of the rollout servers."""
    return {k: v for k, v in os.environ.items() if k != names.ENV_ROLLOUT_TOKEN}
