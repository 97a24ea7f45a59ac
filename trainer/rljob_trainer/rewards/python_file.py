"""Runs a user's reward function in worker processes, over pipes, so that it cannot corrupt, block or end the driver."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rljob_api.spec.model import PythonReward
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardRequest
from rljob_trainer.rewards.worker_process import Respawning, WorkerLost, WorkerProcess

Value = Callable[[RewardRequest], Any]


def _extra_info(request: RewardRequest) -> Any:
    return request.row().get("extra_info") or {}


def _verls_extra_info(request: RewardRequest) -> Any:
    """With what verl's reward managers add to it, for a job without turns and rewards of its rollouts."""
    info = _extra_info(request)
    return {"num_turns": None, "rollout_reward_scores": {}} | info if isinstance(info, dict) else info


INTERFACES: Mapping[Literal["rljob", "verl"], Mapping[str, Value]] = {
    "rljob": {
        "prompt": lambda r: r.prompt,
        "response": lambda r: r.response,
        "answer": lambda r: r.answer,
        "data_source": lambda r: r.data_source,
        "extra_info": _extra_info,
        "row": lambda r: r.row(),
        "tokens": lambda r: list(r.tokens[r.prompt_length :]),
        "truncated": lambda r: r.truncated,
    },
    "verl": {
        "data_source": lambda r: r.data_source,
        "solution_str": lambda r: r.response,
        "ground_truth": lambda r: r.answer_value(),
        "extra_info": _verls_extra_info,
    },
}
"""verl: what its reward managers give a custom function (verl/workers/reward_manager/naive.py)."""
READ_FROM_FILES = {"extra_info", "ground_truth", "row"}


def known_values(spec: PythonReward) -> dict[str, Value]:
    """Those of the interface, and the spec's own."""
    return {name: _constant(value) for name, value in spec.arguments.items()} | dict(INTERFACES[spec.interface])


def require_arguments(field: str, spec: PythonReward, takes: Sequence[str]) -> None:
    """Raises ConfigurationError for an argument at `field` of the spec that the function does not take, or that would hide a value of the call."""
    for name, value in spec.arguments.items():
        if name in INTERFACES[spec.interface]:
            rule, fix = "every call has a value of its own of that name", "choose another name"
        elif name not in takes:
            rule = f"{spec.function_name}() in {spec.path} takes no argument of that name"
            fix = "remove it, or add the parameter to the function"
        else:
            continue
        raise ConfigurationError(f"{field}.{name}", str(value)[:200], rule, fix)


def _constant(value: Any) -> Value:
    return lambda request: value


def arguments(request: RewardRequest, known: Mapping[str, Value], names: Sequence[str]) -> dict[str, Any]:
    """The values of these names, which are among the `known` ones. Reads the row's file for READ_FROM_FILES."""
    return {name: known[name](request) for name in names}


AT_ONCE = 64
"""Concurrent calls of an async function, over all processes."""


class PythonFile:
    """A file that `field` of the spec means by `target`, in `workers` processes that share the calls.

    A call that takes longer than `seconds` ends its process, unless the function is async; the next call starts another.
    """

    def __init__(self, field: str, target: str, spec: PythonReward, seconds: float, workers: int):
        self._field, self._target, self._spec = field, target, spec
        self._known = known_values(spec)
        self._workers = [_Worker(spec, seconds) for _ in range(workers)]
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        """Each process as often as it can take a call."""

    async def start(self) -> None:
        """Raises ConfigurationError when the file is missing, cannot be imported, or lacks a function that can be called."""
        self._require_file()
        started = await asyncio.gather(*(worker.running() for worker in self._workers), return_exceptions=True)
        for found in started:
            if isinstance(found, BaseException):
                rule = f"cannot be loaded: {found}"
                raise ConfigurationError(self._field, self._target, rule, self._fix(found)) from found
        require_arguments(f"{self._field.removesuffix('.path')}.arguments", self._spec, self._workers[0].takes)
        concurrent = isinstance(started[0], WorkerProcess) and started[0].concurrent
        for _ in range(max(1, AT_ONCE // len(self._workers)) if concurrent else 1):
            for worker in self._workers:
                self._free.put_nowait(worker)

    async def score(self, request: RewardRequest) -> Reward:
        """Raises RewardFailed."""
        values = await self._values(request)
        worker = await self._free.get()
        try:
            reply = await worker.call(values)
        except WorkerLost as error:
            raise RewardFailed(error.kind, self._field, self._target, str(error)) from error
        finally:
            self._free.put_nowait(worker)
        if "error" in reply:
            raise RewardFailed(reply["kind"], self._field, self._target, reply["error"])
        return Reward(reply["score"], reply["metrics"], reply["prediction"])

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
            return "a function that was written for verl needs interface: verl next to its path"
        return "fix the file; it is imported by itself, with the image's packages"

    def _require_file(self) -> None:
        if not Path(self._spec.path).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise ConfigurationError(self._field, self._target, "there is no such file in the trainer pod", fix)


class _Worker:
    """One process after another."""

    def __init__(self, spec: PythonReward, seconds: float):
        arguments = (spec.path, spec.function_name, json.dumps([*known_values(spec)]), str(seconds))
        self._process = Respawning(lambda: WorkerProcess.start(arguments, seconds))
        self.takes: list[str] = []
        """Names of what the function is called with, once a process has run."""

    async def running(self) -> WorkerProcess:
        """Raises WorkerLost."""
        process = await self._process.running()
        self.takes = list(process.takes)
        return process

    async def call(self, values: dict[str, Any]) -> dict[str, Any]:
        """The function's answer. Raises WorkerLost, after which the next call gets a new process."""
        process = await self.running()
        try:
            return await process.call(values)
        except WorkerLost:
            await self._process.end(process)
            raise
        except asyncio.CancelledError:
            if not process.concurrent:
                await self._process.end(process)  # the next call would wait for this one
            raise

    async def stop(self) -> None:
        await self._process.stop()
