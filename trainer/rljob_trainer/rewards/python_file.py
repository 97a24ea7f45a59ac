"""Runs a user's reward function in worker processes, so that it cannot corrupt, block or end the driver."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.spec.model import PythonReward
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import (
    MODULE,
    READ_FROM_FILES,
    Reward,
    RewardFailed,
    RewardRequest,
    arguments,
    command,
    known_values,
    require_arguments,
)
from rljob_trainer.rewards.signatures import fix_of
from rljob_trainer.workers.process import WorkerGone, WorkerLost, WorkerProcess, WorkerTaken
from rljob_trainer.workers.workers import AnyWorkers, LoadingLost, NotLoaded, OwnWorkers, PodWorkers, Tries

NAMES_OF_ANSWERS = ("answer", "ground_truth")
"""What the interfaces call the answer of a row."""
AT_ONCE = 64
"""Concurrent calls of an async function: over all processes next to the driver, or in each one of a pod."""


class RewardProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = MODULE

    @property
    def room(self) -> int:
        return AT_ONCE if self.concurrent else 1


RewardPods = PodWorkers[RewardProcess]


class PythonFile:
    """A file that `field` of the spec means by `target`, in processes that share the calls.

    A call that takes longer than `seconds` ends its process, unless the function is async; the next call starts another.
    """

    def __init__(self, field: str, target: str, spec: PythonReward, seconds: float, pods: RewardPods | None = None):
        """`pods`: where it runs; None: next to the driver."""
        self._field, self._target, self._spec = field, target, spec
        self._known = known_values(spec)
        start = partial(RewardProcess.start, command(spec, seconds), seconds)
        self._workers: AnyWorkers[RewardProcess] = pods or OwnWorkers(start, AT_ONCE)
        self._in_pods = pods is not None
        self._takes: list[str] | None = None
        """Names of what the function is called with, once that is known."""
        self.needed_answer: str = ""
        """What a function calls the answer that has no default for it; empty: it may do without, or is not loaded."""

    async def start(self) -> None:
        """Raises ConfigurationError when the file is missing, cannot be imported, or lacks a function that can be called. Pods are waited for only
        when there is something to score. Raises LoadingLost."""
        if not self._in_pods:
            self._require_file()
            await self._loaded()

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed, and ConfigurationError as `start`."""
        reply = await self._reply(await self._values(request))
        if "error" in reply:
            raise RewardFailed(reply["kind"], self._field, self._target, reply["error"])
        return Reward(reply["score"], reply["metrics"], reply["prediction"])

    async def stop(self) -> None:
        await self._workers.stop()

    async def _loaded(self) -> list[str]:
        """What the function takes."""
        try:
            process = await self._workers.start()
        except NotLoaded as error:
            raise ConfigurationError(
                self._field, self._target, f"cannot be loaded: {error}", fix_of(self._spec, str(error), error.details)
            ) from error
        except WorkerGone as error:
            raise LoadingLost(self._field, self._target, error) from error
        takes = list(process.takes)
        require_arguments(f"{self._field.removesuffix('.path')}.arguments", self._spec, takes)
        self._takes = takes
        self.needed_answer = next((name for name in NAMES_OF_ANSWERS if name in process.hello.get("needs", ())), "")
        return takes

    async def _reply(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the function answers. A pod that is lost says nothing of the function, nor does a process that was stopped for another call: it is
        called again."""
        tries = Tries()
        while True:
            try:
                return await self._called(values, tries.alone)
            except WorkerLost as error:
                again = WorkerGone if self._in_pods else WorkerTaken
                if not isinstance(error, again) or tries.are_over(error):
                    raise RewardFailed(error.kind, self._field, self._target, str(error)) from error

    async def _called(self, values: dict[str, Any], alone: bool) -> dict[str, Any]:
        """Raises WorkerLost: the process is ended."""
        async with self._workers.one(alone) as process:
            try:
                return await process.call(values)
            except asyncio.CancelledError:
                if not process.concurrent:
                    await process.stop()  # the next call would wait for this one
                raise

    async def _values(self, request: RewardRequest) -> dict[str, Any]:
        """What the function takes. Reading a file may wait for its volume, and is not on the function's clock."""
        takes = self._takes if self._takes is not None else await self._loaded()
        if READ_FROM_FILES.isdisjoint(takes):
            return arguments(request, self._known, takes)
        return await asyncio.to_thread(arguments, request, self._known, takes)

    def _require_file(self) -> None:
        if not Path(self._spec.path).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise ConfigurationError(self._field, self._target, "there is no such file in the trainer pod", fix)
