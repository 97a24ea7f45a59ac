"""An agent that is a user's function, or an environment of a library, in worker processes, so that it cannot corrupt, block or end the driver;
and the driver's end of such a process (worker.py), next to the driver or in a pod of its own."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rljob_api.spec.agent import AgentSpec
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.claims import Sandboxes
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.history import HISTORY
from rljob_trainer.agents.program import MODULE, Program
from rljob_trainer.agents.recording import AgentFailed, AgentFailureKind, Rollout
from rljob_trainer.agents.session import Session
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.workers.process import GRACE_SECONDS, WorkerGone, WorkerLost, WorkerProcess, WorkerTaken
from rljob_trainer.workers.workers import AnyWorkers, LoadingLost, NotLoaded, OwnWorkers, PodWorkers, Tries

AT_ONCE = 256
"""Trajectories of one process at a time."""


class Questions:
    """What one trajectory asks, until `end`."""

    def __init__(self, session: Session, send: Callable[[tuple[int, dict[str, Any]]], Awaitable[None]]):
        """`send`: the number of a question, and its answer."""
        self._session, self._send = session, send
        self._tasks: dict[int, asyncio.Task[int | None]] = {}
        """By question: those that are being answered, and claims, which are answered with a sandbox."""

    def begin(self, question: int, method: str, arguments: dict[str, Any]) -> None:
        self._tasks[question] = asyncio.create_task(self._answer(question, method, arguments))
        if method != "claim":
            self._tasks[question].add_done_callback(partial(self._forget, question))

    def _forget(self, question: int, _: asyncio.Task[int | None]) -> None:
        self._tasks.pop(question, None)

    def give_up(self, question: int) -> None:
        """Nobody waits for the answer any more. If it is on its way, and is a sandbox, nobody will ever know that one."""
        task = self._tasks.pop(question, None)
        answered = task is not None and not task.cancel() and not task.cancelled()
        claim = task.result() if task and answered else None
        if claim is not None:
            self._session.claims.end(claim)

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, question: int, method: str, arguments: dict[str, Any]) -> int | None:
        """Returns the number of a sandbox that was claimed."""
        try:
            value = await self._session.answer(method, arguments)
            reply = {"value": value}
        except PolicyError as error:
            value, reply = None, {"error": str(error)}
        except Exception as error:
            self._session.fail(error)
            return None
        claim = value if method == "claim" else None
        try:
            await self._send((question, reply))
        except asyncio.CancelledError:
            if claim is not None:
                self._session.claims.end(claim)
            raise
        return claim


class AgentProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = MODULE
    START_SECONDS = 300.0
    """Libraries of environments import much."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._asked: dict[int, Questions] = {}
        """By trajectory."""

    @property
    def room(self) -> int:
        return AT_ONCE

    async def rollout(self, values: dict[str, Any], session: Session) -> dict[str, Any]:
        """What the function answers in the end. Raises WorkerLost, after which the process has to be stopped."""
        if self.ended:
            raise WorkerTaken("its process is gone")
        number = next(self._numbers)
        reply = session.reply = self._calls[number] = asyncio.get_running_loop().create_future()
        asked = self._asked[number] = Questions(session, partial(self._tell, "answer", number))
        try:
            await self._tell("begin", number, values)
            session.is_called = not self.ended
            async with session.own_time.limited():
                answer = await asyncio.shield(reply)
        except TimeoutError:
            return await self._cancelled(number, reply)
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        finally:
            del self._calls[number], self._asked[number]
            reply.cancel()
            asked.end()
        self._bound_processes()
        return answer

    async def _cancelled(self, number: int, reply: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """A function that waits ends when it is cancelled. One that does not holds its process, which raises WorkerLost."""
        self._cancel(number)
        late = f"took longer than {self._seconds:g} s of its own"
        await asyncio.wait({reply}, timeout=GRACE_SECONDS)
        if not reply.done():
            raise WorkerLost(late, "timeout")
        return {"error": late, "kind": "timeout"}

    def _received(self, reply: dict[str, Any]) -> None:
        if "question" not in reply:
            return super()._received(reply)
        asked = self._asked.get(reply.pop("number"))
        if asked:
            if "given_up" in reply:
                asked.give_up(reply["question"])
            else:
                asked.begin(**reply)
        return None

    async def _tell(self, kind: str, number: int, value: Any) -> None:
        await self._send((kind, number, value))

    def _cancel(self, number: int) -> None:
        """Without waiting: it is short, and at most one for each trajectory."""
        self._peer.write(pickle.dumps(("cancel", number, None)))


AgentPods = PodWorkers[AgentProcess]


class WorkerAgent:
    """Call `start` before the first trajectory and `stop` after the last."""

    def __init__(
        self, spec: AgentSpec, pods: AgentPods | None = None, address: str = "", sandboxes: Sandboxes | None = None
    ):
        """`pods`: where it runs; None: next to the driver. `address`: of the driver, for these pods."""
        program = self._program = Program.of(spec)
        self.spec = spec
        start = partial(AgentProcess.start, program.command, spec.timeout_seconds, spec.env)
        self._workers: AnyWorkers[AgentProcess] = pods or OwnWorkers(start)
        self._in_pods = pods is not None
        self._sandboxes = sandboxes or Sandboxes()
        self._endpoint = Endpoint(address)
        self.tools: list[dict[str, Any]] = []
        """JSON schemas of what the policy may call, once it has started."""

    @property
    def ready(self) -> bool:
        return self._workers.ready and self._sandboxes.ready

    async def start(self) -> None:
        """Raises ConfigurationError when file or library is missing, cannot be imported, or lacks what the spec names. Pods are waited for only where
        the chat template shows what they have loaded. Raises LoadingLost."""
        if not self._in_pods:
            self._program.require_file()
        await self._endpoint.start()
        if self._in_pods and self._program.kind != "tools":
            return
        try:
            self.tools = (await self._workers.start()).hello["tools"]
        except NotLoaded as error:
            raise self._unloadable(error) from error
        except WorkerGone as error:
            raise LoadingLost(self._program.field, self._program.target, error) from error

    async def rollout(self, session: Session) -> Rollout:
        """One trajectory. Raises AgentFailed, ConfigurationError, and what the rollouts raise."""
        row = await asyncio.to_thread(session.prompt.row)  # a volume that is slow is not on the agent's clock
        session, reply = await self._reply(session, _values(session.prompt, row))
        if "error" in reply:
            raise self._failed(reply["kind"], reply["error"])
        trajectory = reply["trajectory"]
        if trajectory is None:
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
        return replace(
            rollout,
            reward=rollout.reward + reward,
            metrics=metrics,
            resumed=session.resumed,
            run_again=session.run_again,
        )

    async def _reply(self, session: Session, values: dict[str, Any]) -> tuple[Session, dict[str, Any]]:
        """What a process answers in the end, with the session in which it asked. A trajectory whose process is lost is continued in another, or
        begins anew there, as its function can."""
        tries, is_lost = Tries(), False
        while True:
            try:
                async with self._workers.one(tries.alone) as process:
                    if is_lost:
                        session = session.continued() if HISTORY in process.takes else session.anew()
                    return session, await self._tried(process, session, values)
            except WorkerLost as error:
                if not isinstance(error, WorkerGone) or tries.are_over(error):
                    raise self._failed(error.kind, str(error)) from error
                is_lost = True
            except NotLoaded as error:
                raise self._unloadable(error) from error

    async def _tried(self, process: AgentProcess, session: Session, values: dict[str, Any]) -> dict[str, Any]:
        """Raises WorkerLost."""
        async with self._sandboxes.claims() as session.claims:
            url = self._endpoint.open(session)
            try:
                history = await asyncio.to_thread(session.history) if HISTORY in process.takes else None
                return await process.rollout(values | {"base_url": url, HISTORY: history}, session)
            finally:
                self._endpoint.close(url)

    async def stop(self) -> None:
        await asyncio.gather(self._workers.stop(), self._endpoint.stop())

    def _failed(self, kind: AgentFailureKind, reason: str) -> AgentFailed:
        program = self._program
        named = f"environment {program.target}: " if program.is_library and program.target not in reason else ""
        return AgentFailed(kind, program.field, program.target, named + reason)

    def _unloadable(self, error: NotLoaded) -> ConfigurationError:
        return self._program.error(f"cannot be loaded: {error}", self._program.fix(self._in_pods))


def _values(prompt: Prompt, row: Any) -> dict[str, Any]:
    """What the function is called with."""
    fields = {name: getattr(prompt, name) for name in ("text", "answer", "data_source")}
    return {"prompt": fields | {"tokens": list(prompt.tokens)}, "row": dict(row)}
