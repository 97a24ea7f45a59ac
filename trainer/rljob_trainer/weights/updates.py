"""The server's side of a weight update: one at a time, applied whole or not at all, caches emptied.

open -> receive -> commit. What fails before the weights are touched leaves the old ones being served; what fails after ends the server,
because vLLM would keep answering with a broken model, and the supervisor starts a fresh one.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rljob_trainer.weights.protocol import APPLYING_FAILED, AttemptSuperseded, Gate, PolicyVersion

log = logging.getLogger(__name__)


class UpdateError(RuntimeError):
    """A step of an update failed; the update is abandoned."""


class WeightUpdates:
    """Drives vLLM's engine through an update. `engine` is vLLM's AsyncLLM; what its workers do is in weights/engine.py."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._lock = asyncio.Lock()
        self._session = ""
        self._asleep = False

    @property
    def running(self) -> bool:
        """Whether the engine is at work for one of these, which may take as long as protocol.py allows."""
        return self._lock.locked()

    async def open(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Pause generation (what is in flight ends as aborted) and connect to the trainer. An update that was left open is discarded."""
        session = body["session"]
        where = {"attempt": attempt} | {key: body[key] for key in ("address", "port", "known")}
        async with self._lock:
            await self._discard(engine)
            async with self._abandon_on_error(engine, attempt):
                self._gate.updating, self._session = True, session
                await _pause(engine)
                if self._asleep:
                    await engine.wake_up(tags=["weights"])
                await engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": where})
                await engine.collective_rpc("start_weight_update")

    async def receive(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Receive, verify and stage buckets: one call into the engine, which learns of each from the trainer (messages.py)."""
        info = {"attempt": attempt, "messages": body["messages"]}
        async with self._lock:
            self._check(body)
            async with self._abandon_on_error(engine, attempt):
                await engine.collective_rpc("update_weights", kwargs={"update_info": info})

    async def commit(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Compare the digest of everything, apply, empty the caches, serve."""
        version = PolicyVersion(attempt, body["step"], body["digest"])
        async with self._lock:
            self._check(body)
            async with self._abandon_on_error(engine, attempt):
                await engine.collective_rpc("rljob_verify", kwargs={"attempt": attempt, "digest": version.digest})
            await self._apply(engine)
            self._gate.serving = version
            self._gate.updating, self._session = False, ""

    async def abort(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Go on with the old weights."""
        async with self._lock:
            self._check(body)
            await self._discard(engine)

    async def sleep(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Give all memory back but what the process itself needs, or, without a GPU, only stop. Serves nothing until the next update."""
        async with self._lock:
            self._gate.fence.admit(attempt)
            self._gate.serving = None
            await _pause(engine)
            if engine.vllm_config.model_config.enable_sleep_mode and not self._asleep:
                await engine.sleep(level=2)  # discards the weights too: the next ones come anyway
                self._asleep = True

    async def interrupt(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Have what is in flight answered as it is, `abort` its reason to end. The policy stays, and with it the caches.

        While nothing is served there is nothing in flight, and an update or sleep has paused the engine for itself.
        """
        async with self._lock:
            self._gate.fence.admit(attempt)
            if self._gate.served():
                await _pause(engine, clear_cache=False)
                await engine.resume_generation()

    def _check(self, body: dict[str, Any]) -> None:
        if body["session"] != self._session:
            raise UpdateError("this update is no longer open")

    @asynccontextmanager
    async def _abandon_on_error(self, engine: Any, attempt: int) -> AsyncIterator[None]:
        try:
            self._gate.fence.admit(attempt)  # a higher one may have come while this request waited for the lock
            yield
        except AttemptSuperseded:
            await self._discard(engine)
            raise
        except Exception as error:
            await self._discard(engine)
            raise UpdateError(str(error)) from error

    async def _discard(self, engine: Any) -> None:
        if self._gate.updating:
            await engine.collective_rpc("rljob_discard")
            await engine.resume_generation()
            self._gate.updating, self._session = False, ""

    async def _apply(self, engine: Any) -> None:
        self._gate.serving = None
        try:
            await engine.collective_rpc("finish_weight_update")
            if self._asleep:  # after the update has given its memory back
                await engine.wake_up(tags=["kv_cache"])
                self._asleep = False
            if not await engine.reset_prefix_cache():
                raise UpdateError("the prefix cache could not be emptied: it holds values of the old weights")
            await engine.resume_generation()
        except BaseException:
            log.exception(APPLYING_FAILED)
            os.kill(os.getpid(), signal.SIGTERM)
            raise


async def _pause(engine: Any, clear_cache: bool = True) -> None:
    """What is in flight ends as aborted. As AsyncLLM.pause_generation, without its 20 ms of sleep for the order in which a caller sees answers."""
    await engine.engine_core.pause_scheduler_async(mode="abort", clear_cache=clear_cache)
