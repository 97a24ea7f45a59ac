"""Runs a user's agent, or an environment of a library, in worker processes, over pipes, so that it cannot corrupt, block or end the driver."""

import asyncio
import json
import pickle
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.environments import MODULES, PACKAGES
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.machine import cpus
from rljob_trainer.rewards.worker_process import GRACE_SECONDS, Respawning, WorkerLost, WorkerProcess


class AgentProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = "rljob_trainer.agents.worker"
    START_SECONDS = 300.0
    """Libraries of environments import much."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._asked: dict[int, tuple[Session, set[asyncio.Task[None]]]] = {}
        """By trajectory."""

    async def rollout(self, values: dict[str, Any], session: Session) -> dict[str, Any]:
        """What the function answers in the end. Raises WorkerLost, after which the process has to be stopped."""
        number = next(self._numbers)
        reply = session.reply = self._calls[number] = asyncio.get_running_loop().create_future()
        asking = set[asyncio.Task[None]]()
        self._asked[number] = session, asking
        try:
            self._send("begin", number, values)
            async with session.own_time.limited():
                answer = await asyncio.shield(reply)
        except TimeoutError:
            return await self._cancelled(number, reply)
        except asyncio.CancelledError:
            self._send("cancel", number, None)
            raise
        finally:
            del self._calls[number], self._asked[number]
            reply.cancel()
            for task in asking:
                task.cancel()
        await self._bound_processes()
        return answer

    async def _cancelled(self, number: int, reply: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """A function that waits ends when it is cancelled. One that does not holds its process, which raises WorkerLost."""
        self._send("cancel", number, None)
        late = f"took longer than {self._seconds:g} s of its own"
        await asyncio.wait({reply}, timeout=GRACE_SECONDS)
        if not reply.done():
            raise WorkerLost(late, "timeout")
        return {"error": late, "kind": "timeout"}

    def _received(self, reply: dict[str, Any]) -> None:
        if "question" not in reply:
            return super()._received(reply)
        if found := self._asked.get(reply["number"]):
            session, asking = found
            task = asyncio.create_task(self._answer(session, **reply))
            asking.add(task)
            task.add_done_callback(asking.discard)
        return None

    async def _answer(
        self, session: Session, number: int, question: int, method: str, arguments: dict[str, Any]
    ) -> None:
        try:
            found = {"value": await session.answer(method, arguments)}
        except PolicyError as error:
            found = {"error": str(error)}
        except Exception as error:
            session.fail(error)
            return
        self._send("answer", number, (question, found))

    def _send(self, kind: str, number: int, value: Any) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():  # the reader says so to whoever waits
            self._process.stdin.write(pickle.dumps((kind, number, value)))


MAX_WORKERS = 8
"""At most so many processes; each imports the file."""
AT_ONCE = 256
"""Trajectories of one process at a time."""


class WorkerAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self, spec: AgentSpec):
        program = self._program = Program.of(spec)
        self.spec = spec
        arguments = (program.kind, program.target, json.dumps(program.details))
        start = partial(AgentProcess.start, arguments, spec.timeout_seconds, spec.env)
        self._workers = [Respawning(start) for _ in range(min(cpus(), MAX_WORKERS))]
        self._free: asyncio.Queue[Respawning[AgentProcess]] = asyncio.Queue()
        """Each process as often as it can take a trajectory."""
        self._endpoint = Endpoint()
        self.tools: list[dict[str, Any]] = []
        """JSON schemas of what the policy may call, once it has started."""

    async def start(self) -> None:
        """Raises ConfigurationError when file or library is missing, cannot be imported, or lacks what the spec names."""
        self._program.require_file()
        await self._endpoint.start()
        for found in await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True):
            if isinstance(found, AgentProcess):
                self.tools = found.hello["tools"]
            else:
                raise self._program.error(f"cannot be loaded: {found}", self._program.fix) from found
        for _ in range(AT_ONCE):
            for worker in self._workers:
                self._free.put_nowait(worker)

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)  # a volume that is slow is not on the agent's clock
        url = self._endpoint.open(session)
        try:
            reply = await self._reply(session, _values(session.prompt, row) | {"base_url": url})
        finally:
            self._endpoint.close(url)
        if "error" in reply:
            raise self._failed(reply["kind"], reply["error"])
        if (trajectory := reply["trajectory"]) is None:
            said = "had no room for a turn" if self._program.is_library else "the function returned None"
            raise self._failed("none", said)
        return self._rollout(session, **trajectory)

    def _rollout(
        self,
        session: Session,
        sequences: list[list[int]],
        rewards: list[float],
        reward: float,
        metrics: dict[str, float],
    ) -> Rollout:
        """What the function returned. Raises AgentFailed."""
        try:
            rollout = session.rollout(sequences, rewards)
        except PolicyError as error:
            raise self._failed("value", f"returned a Trajectory that cannot be: {error}") from error
        if rollout is None:
            raise self._failed(
                "value", "returned a Trajectory without one answer of policy.generate behind its context"
            )
        return replace(rollout, reward=rollout.reward + reward, metrics=metrics)

    async def _reply(self, session: Session, values: dict[str, Any]) -> dict[str, Any]:
        """A process that is lost is ended: the next trajectory gets a new one."""
        worker = await self._free.get()
        try:
            process = await worker.running()
            try:
                return await process.rollout(values, session)
            except WorkerLost:
                await worker.end(process)
                raise
        except WorkerLost as error:
            raise self._failed("timeout" if error.kind == "timeout" else "raised", str(error)) from error
        finally:
            self._free.put_nowait(worker)

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers), self._endpoint.stop())

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        program = self._program
        named = f"environment {program.target}: " if program.is_library and program.target not in reason else ""
        return AgentFailed(kind, program.field, program.target, named + reason)


@dataclass(frozen=True, slots=True)
class Program:
    """What the processes run."""

    kind: str
    """The field below spec.rollout.agent."""
    target: str
    """A file, or an environment of a library."""
    details: list[str] | dict[str, Any]
    """Functions in the file, or arguments of the environment."""

    @classmethod
    def of(cls, spec: AgentSpec) -> "Program":
        if spec.tools:
            return cls("tools", spec.tools.path, spec.tools.functions)
        if spec.python:
            return cls("python", spec.python.path, [spec.python.function])
        libraries = {"verifiers": spec.verifiers, "skyrlGym": spec.skyrl_gym, "reasoningGym": spec.reasoning_gym}
        kind, library = next((k, found) for k, found in libraries.items() if found)  # the spec was checked: one is set
        return cls(kind, library.environment, library.arguments)

    @property
    def is_library(self) -> bool:
        return self.kind in MODULES

    @property
    def field(self) -> str:
        return f"spec.rollout.agent.{self.kind}.{'environment' if self.is_library else 'path'}"

    @property
    def fix(self) -> str:
        if self.is_library:
            where = "in the trainer's image, or in a directory that spec.rollout.agent.env names in PYTHONPATH"
            return f"correct name and arguments, and see that {PACKAGES[self.kind]} is installed {where}"
        return "correct the file; it is imported as a file of its own, with the image's packages"

    def require_file(self) -> None:
        """Raises ConfigurationError."""
        if not self.is_library and not Path(self.target).is_file():
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise self.error("there is no such file in the trainer pod", fix)

    def error(self, rule: str, fix: str) -> ConfigurationError:
        return ConfigurationError(self.field, self.target, rule, fix)


def _values(prompt: Prompt, row: Any) -> dict[str, Any]:
    """What the function is called with."""
    fields = {name: getattr(prompt, name) for name in ("text", "answer", "data_source")}
    return {"prompt": fields | {"tokens": list(prompt.tokens)}, "row": dict(row)}
