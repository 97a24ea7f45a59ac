"""Whether a rollout server is dead or frozen, checked by the process that started it.

vLLM's API server answers without its engine, and stays up when the engine has died or hangs. So two things are checked:

    dead     an engine process has ended: looked up every POLL_SECONDS, also while the server starts
    frozen   the API server has not answered for FROZEN_SECONDS, or its engine has not, which may take BUSY_SECONDS while it computes

The engine answers between two of its steps, so an answer means that it moves. A long prefill, a compilation and a weight update delay it.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import psutil

from rljob_trainer.weights.protocol import HEALTH

POLL_SECONDS = 1.0
ASK_SECONDS = 2.0
"""Pause between two questions, and how long the API server waits for its engine before it answers that it is silent."""
ANSWER_SECONDS = 10.0
"""Longest wait for an answer of the API server."""
FROZEN_SECONDS = 30.0
BUSY_SECONDS = 150.0
"""No step, no compilation and no part of a weight update (protocol.py has their limits) takes as long."""
BUSY_SHARE = 0.1
"""Of one core. An engine that uses more computes."""
ENGINE = re.compile(r"::(EngineCore|Worker)")
"""In the titles of vLLM's engine processes (0.26, vllm/utils/system_utils.py, set_process_title)."""


class EngineClock:
    """In the API server: for how long the engine has not answered. One question is open at a time."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._question: asyncio.Future[Any] | None = None

    async def silence(self, ask: Callable[[], Awaitable[Any]]) -> float:
        """Seconds since the open question was asked, when the engine does not answer it within ASK_SECONDS, else 0. Raises what `ask` raises."""
        if self._question is None:
            self._asked, self._question = time.monotonic(), asyncio.ensure_future(ask())
        await asyncio.wait({self._question}, timeout=ASK_SECONDS)
        if not self._question.done():
            return time.monotonic() - self._asked
        question, self._question = self._question, None
        question.result()
        return 0.0


class HealthCheck:
    """Of one server, by the process that started it."""

    def __init__(self, pid: int, url: str, token: str) -> None:
        """`pid` of the API server, `url` where it will answer."""
        self._url, self._token = url, token
        self._engines = Engines(pid)

    async def lost(self) -> str:
        """Returns once the server is dead or frozen, with the reason."""
        checks = [asyncio.create_task(self._dead()), asyncio.create_task(self._frozen())]
        try:
            done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
            return next(check.result() for check in done)
        finally:
            for check in checks:
                check.cancel()

    async def _dead(self) -> str:
        while True:
            if reason := self._engines.look():
                return reason
            await asyncio.sleep(POLL_SECONDS)

    async def _frozen(self) -> str:
        """Counts from the server's first answer: before that it loads a model, which may take any time."""
        timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}"}
        answered: float | None = None
        async with aiohttp.ClientSession(self._url, headers=headers, timeout=timeout) as session:
            while True:
                await asyncio.sleep(ASK_SECONDS)
                answer = await _ask(session)
                now = time.monotonic()
                answered = now if answer else answered
                if answer and (reason := self._engine_lost(answer)):
                    return reason
                if answered and now - answered > FROZEN_SECONDS:
                    return f"the API server has not answered for {now - answered:.0f} s"

    def _engine_lost(self, answer: dict[str, Any]) -> str:
        """What is wrong with the engine, by the API server's answer; empty when nothing is."""
        if "error" in answer:
            return f"the engine failed: {answer['error']}"
        busy = answer["updating"] or self._engines.busy
        if answer["silence"] > (BUSY_SECONDS if busy else FROZEN_SECONDS):
            return f"the engine has not answered for {answer['silence']:.0f} s"
        return ""


class Engines:
    """The engine processes of a server."""

    def __init__(self, server: int) -> None:
        """`server`: pid of the API server."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._server = psutil.Process(server)
        self._found: set[psutil.Process] = set()
        self._used, self._looked, self._computed = 0.0, time.monotonic(), 0.0

    @property
    def busy(self) -> bool:
        """Whether they have used a processor in the last FROZEN_SECONDS."""
        return time.monotonic() - self._computed < FROZEN_SECONDS

    def look(self) -> str:
        """Which of them has ended; empty when none has."""
        used, now = 0.0, time.monotonic()
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):  # it has just ended
                times = process.cpu_times()
                used += times.user + times.system
                if ENGINE.search(" ".join(process.cmdline())):
                    self._found.add(process)
        if used - self._used > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._used, self._looked = used, now
        return next((f"the engine's process {p.pid} ended" for p in self._found if not _runs(p)), "")

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return self._server.children(recursive=True)
        return []


async def _ask(session: aiohttp.ClientSession) -> dict[str, Any] | None:
    """The answer of the API server; None when there is none."""
    try:
        async with session.get(HEALTH) as response:
            answer: dict[str, Any] = await response.json()
            return answer
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _runs(process: psutil.Process) -> bool:
    """Not a zombie either."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
