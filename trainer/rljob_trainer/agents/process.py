"""The driver's end of a process that runs an agent (worker.py), next to the driver or in a pod of its own."""

import asyncio
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.program import MODULE
from rljob_trainer.agents.session import Session
from rljob_trainer.workers.process import GRACE_SECONDS, WorkerLost, WorkerProcess, WorkerTaken

AT_ONCE = 256
"""Trajectories of one process at a time."""


class Questions:
    """What one trajectory asks, until `end`."""

    def __init__(self, session: Session, send: Callable[[tuple[int, dict[str, Any]]], None]):
        """`send`: the number of a question, and its answer."""
        self._session, self._send = session, send
        self._tasks: dict[int, asyncio.Task[int | None]] = {}
        """By question: those that are being answered, and claims, which are answered with a sandbox."""

    def begin(self, question: int, method: str, arguments: dict[str, Any]) -> None:
        self._tasks[question] = asyncio.create_task(self._answer(question, method, arguments))
        if method != "claim":
            self._tasks[question].add_done_callback(lambda _: self._tasks.pop(question, None))

    def give_up(self, question: int) -> None:
        """Nobody waits for the answer any more. If it is on its way, and is a sandbox, nobody will ever know that one."""
        task = self._tasks.pop(question, None)
        if task and not task.cancel() and not task.cancelled() and (claim := task.result()) is not None:
            self._session.claims.end(claim)

    def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, question: int, method: str, arguments: dict[str, Any]) -> int | None:
        """Returns the number of a sandbox that was claimed."""
        try:
            value = await self._session.answer(method, arguments)
            found = {"value": value}
        except PolicyError as error:
            value, found = None, {"error": str(error)}
        except Exception as error:
            self._session.fail(error)
            return None
        self._send((question, found))
        return value if method == "claim" else None


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
        asked = self._asked[number] = Questions(session, partial(self._send, "answer", number))
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
            asked.end()
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
        if asked := self._asked.get(reply.pop("number")):
            if "given_up" in reply:
                asked.give_up(reply["question"])
            else:
                asked.begin(**reply)
        return None

    def _send(self, kind: str, number: int, value: Any) -> None:
        self._peer.write(pickle.dumps((kind, number, value)))
