"""The server's side of weight updates: open, commit. One at a time, applied completely or not at all.

The workers receive in threads of their own (reception.py), so the server generates until `commit`, unless it serves nothing, or has no room to keep
its policy meanwhile: then the update is loaded over it. After a failure before the weights are touched, the server continues with the old ones. After
one in an update over them it serves nothing until the next update, and its engine stays paused, because a request that was let in before may wait
there. A failure while a verified update is applied ends the server, because vLLM would keep answering with a broken model; the supervisor starts a
new one.

Requests in flight are aborted, or, if the update keeps them, stand still while it is applied, and continue with their keys and values under the next
policy. Requests that come meanwhile wait in the engine. What was cached for requests that come later is not dropped then, since vLLM can drop it only
with what running requests use; its salt keeps it from requests of the next policy (generate.py).
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from rljob_trainer.server.guard import all_workers, copies
from rljob_trainer.wire.weights.protocol import APPLYING_FAILED, PAUSING_FAILED, AttemptSuperseded, Gate, PolicyVersion

log = logging.getLogger(__name__)


class UpdateError(RuntimeError):
    """A request of an update failed, and the update was abandoned."""


class WeightUpdates:
    """Drives vLLM's engine through updates. `engine` is vLLM's AsyncLLM; the part in its workers is weights/engine.py."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._lock = asyncio.Lock()
        self._session = ""
        self._open = False
        """An update is."""
        self._asleep = False
        self._woken = False
        """Its weights are awake for the update."""
        self._keeps = False
        """The update keeps requests in flight."""
        self._still_since = 0.0
        """When they were stopped, since it is loaded over the weights; 0: they were not."""
        self._paused = False
        """Generation is."""

    @property
    def running(self) -> bool:
        """Whether a request is being served, which may take as long as protocol.py allows."""
        return self._lock.locked()

    async def open(self, engine: Any, attempt: int, body: dict[str, Any]) -> dict[str, Any]:
        """Have the workers receive an update from these senders. An update that was left open is abandoned.

        Returns {"doors": [worker] -> host and port where senders and other workers reach it, "needs": [worker] -> what it
        needs of the update (Needs)}.
        """
        session, server, senders = body["session"], body["server"], body["senders"]
        async with self._lock:
            await self._discard(engine)
            async with self._abandon_on_error(engine, attempt):
                self._open, self._session = True, session
                serves = self._gate.served() is not None
                self._keeps = serves and body["keep"]
                workers = await all_workers(engine, "rljob_admit", attempt, senders, serves)
                apart = not self._asleep and all(possible for _, possible, _ in workers)
                if not apart:
                    await (self._stand_still(engine) if self._keeps else self._stop_serving(engine))
                await all_workers(engine, "rljob_receive", session, server, senders, apart)
        return {"doors": [door for door, _, _ in workers], "needs": [own for _, _, own in workers]}

    async def commit(self, engine: Any, attempt: int, body: dict[str, Any]) -> dict[str, Any]:
        """Verify what each worker got by the digests `workers`, apply the update, and serve the new policy. Returns {"paused": seconds without
        generation for it}."""
        version = PolicyVersion(attempt, body["step"], body["digest"])
        async with self._lock:
            self._check(body)
            async with self._abandon_on_error(engine, attempt):
                await all_workers(engine, "rljob_verify", attempt, body["workers"])
                began = self._still_since or time.monotonic()
                if self._keeps:
                    await self._pause(engine, "keep")
                else:
                    self._gate.updating = True
                    await self._pause(engine)
            await self._apply(engine, version)
            self._open, self._session, self._still_since = False, "", 0.0
        return {"paused": time.monotonic() - began}

    async def abort(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Abandon the update, and continue with the old weights."""
        async with self._lock:
            self._check(body)
            await self._discard(engine)

    async def sleep(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Stop serving until the next update, and, on a GPU, release weights and KV cache."""
        async with self._lock:
            self._gate.fence.admit(attempt)
            self._gate.serving = None
            await self._pause(engine)
            if engine.vllm_config.model_config.enable_sleep_mode and not self._asleep:
                await engine.sleep(level=2)  # level 2 also discards the weights, since new ones will arrive
                self._asleep = True

    async def interrupt(self, engine: Any, attempt: int, body: dict[str, Any]) -> None:
        """Have all requests in flight answered with what has been generated, with finish reason `abort`. Policy and caches are kept.

        Does nothing while no policy is served: an update or sleep has then paused the engine already.
        """
        async with self._lock:
            self._gate.fence.admit(attempt)
            if self._gate.served():
                await self._pause(engine, clear_cache=False)
                if not self._still_since:
                    await self._resume(engine)

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

    async def _stop_serving(self, engine: Any) -> None:
        """The update is loaded over the weights, which must be there."""
        self._gate.updating, self._gate.serving = True, None
        await self._pause(engine)
        if self._asleep:
            await engine.wake_up(tags=["weights"])
            self._woken = True

    async def _stand_still(self, engine: Any) -> None:
        """As `_stop_serving`, for an update that keeps requests."""
        self._still_since = time.monotonic()
        await self._pause(engine, "keep")

    async def _discard(self, engine: Any) -> None:
        if self._open:
            await all_workers(engine, "rljob_discard")
            if self._still_since:  # over weights that are broken now
                self._still_since = 0.0
                await self._stop_serving(engine)
            if self._woken:
                await engine.sleep(level=2)  # the trainer may need the memory
                self._woken = False
            elif self._gate.updating and self._gate.serving:
                await self._resume(engine)
            self._gate.updating, self._open, self._session = False, False, ""

    async def _apply(self, engine: Any, version: PolicyVersion) -> None:
        try:
            await all_workers(engine, "rljob_apply")
            # before the engine wakes, which lets requests take blocks
            if not self._keeps and not await engine.reset_prefix_cache():
                raise UpdateError("the prefix cache could not be emptied: it holds values of the old weights")
            await engine.update_weight_version(str(version.step))
            if self._asleep:  # after the update has given its memory back
                await engine.wake_up(tags=["kv_cache"])
                self._asleep = self._woken = self._paused = False  # it has resumed generation
            self._gate.serving, self._gate.updating = version, False
            await self._resume(engine)
        except BaseException:
            self._end(APPLYING_FAILED)
            raise

    def _end(self, message: str) -> None:
        self._gate.serving = None
        log.exception(message)
        os.kill(os.getpid(), signal.SIGTERM)

    async def _pause(self, engine: Any, mode: Literal["abort", "keep"] = "abort", clear_cache: bool = True) -> None:
        """Pause generation. Like AsyncLLM.pause_generation, without its sleep of 20 ms, which only orders answers.

        Once, if the server has copies: to pause again, vLLM has all of them compute a step (0.32, DPEngineCoreProc._pause_complete), perhaps with
        weights that are being loaded. A request that was let in before, and came since, then runs under the next policy. After a failure, when
        some copies may have paused and others not, such a server ends.

        Args:
            mode: what becomes of requests in flight
            clear_cache: also empty the caches, unless requests are kept; that of images on both sides, since vLLM's renderer sends only the hash of
                an image that the engine has
        """
        if self._paused and copies(engine) > 1:
            return
        clear_cache = clear_cache and mode == "abort"
        if clear_cache:
            await engine.renderer.clear_mm_cache_async()
        try:
            await engine.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)
        except BaseException:
            if copies(engine) > 1:
                self._end(PAUSING_FAILED)
            raise
        self._paused = True

    async def _resume(self, engine: Any) -> None:
        """Resume generation. Once, if the server has copies: a copy that computes already would not wait for the others, as they for it."""
        if self._paused or copies(engine) == 1:
            await engine.resume_generation()
        self._paused = False
