"""The driver's end of a process that runs an agent's function (agents/worker.py)."""

import asyncio
import pickle
from typing import Any, Protocol

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.own_time import OwnTime
from rljob_trainer.rewards.worker_process import GRACE_SECONDS, WorkerLost, WorkerProcess


class Answers(Protocol):
    """Whoever the agent asks."""

    async def answer(self, method: str, arguments: dict[str, Any]) -> Any:
        """Raises PolicyError."""
        ...


class AgentProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = "rljob_trainer.agents.worker"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._asked: dict[int, tuple[Answers, OwnTime, set[asyncio.Task[None]]]] = {}
        """By trajectory."""

    async def rollout(self, values: dict[str, Any], answers: Answers) -> dict[str, Any]:
        """What the function answers in the end. Raises WorkerLost, after which the process has to be stopped."""
        number = next(self._numbers)
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        own_time, asking = OwnTime(self._seconds + GRACE_SECONDS), set[asyncio.Task[None]]()
        self._asked[number] = answers, own_time, asking
        try:
            self._send("begin", number, values)
            async with own_time.limited():
                return await reply
        except TimeoutError as error:
            raise WorkerLost(f"took longer than {self._seconds:g} s of its own", "timeout") from error
        except asyncio.CancelledError:
            self._send("cancel", number, None)
            raise
        finally:
            del self._calls[number], self._asked[number]
            for task in asking:
                task.cancel()

    def _received(self, reply: dict[str, Any]) -> None:
        if "question" not in reply:
            return super()._received(reply)
        if found := self._asked.get(reply["number"]):
            answers, own_time, asking = found
            task = asyncio.create_task(self._answer(answers, own_time, **reply))
            asking.add(task)
            task.add_done_callback(asking.discard)
        return None

    async def _answer(
        self, answers: Answers, own_time: OwnTime, number: int, question: int, method: str, arguments: dict[str, Any]
    ) -> None:
        with own_time.stopped():
            try:
                found = {"value": await answers.answer(method, arguments)}
            except PolicyError as error:
                found = {"error": str(error)}
            except Exception as error:  # of the rollouts: it ends the attempt, and is not the agent's
                if (reply := self._calls.get(number)) and not reply.done():
                    reply.set_exception(error)
                return
        self._send("answer", number, (question, found))

    def _send(self, kind: str, number: int, value: Any) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():  # the reader says so to whoever waits
            self._process.stdin.write(pickle.dumps((kind, number, value)))
