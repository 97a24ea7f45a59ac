"""The driver's end of a process that runs an agent (worker.py), next to the driver or in a pod of its own."""

import asyncio
import pickle
from typing import Any

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.program import MODULE
from rljob_trainer.agents.session import Session
from rljob_trainer.workers.process import GRACE_SECONDS, WorkerLost, WorkerProcess, WorkerTaken

AT_ONCE = 256
"""Trajectories of one process at a time."""


class AgentProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = MODULE
    START_SECONDS = 300.0
    """Libraries of environments import much."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._asked: dict[int, tuple[Session, set[asyncio.Task[None]]]] = {}
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
        self._peer.write(pickle.dumps((kind, number, value)))
