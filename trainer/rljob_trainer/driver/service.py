"""The driver of a service: hands bodies from the gateway to rank 0, and results back. It looks into none of them."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np

from rljob_api.protocol import Control
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.channel import Arrays
from rljob_trainer.wire.gateway import DONE, DRAINING, DRIVER, JOB, NEXT, NEXT_SECONDS, TICKET
from rljob_trainer.wire.launcher_files import ProgressFile
from rljob_trainer.wire.service import NextWork, ServiceCalls
from rljob_trainer.wire.weights.protocol import ATTEMPT_HEADER, AttemptSuperseded

RETRY_SECONDS = 0.5
"""Before the gateway is asked again, when it does not answer."""

log = logging.getLogger(__name__)


class ServiceDriver(ServiceCalls):
    """The driver of one attempt. The methods that rank 0 calls are documented in wire/service.py."""

    def __init__(self, control: Control, token: str, progress: ProgressFile) -> None:
        """Must be created inside the event loop."""
        self._attempt, self._progress = control.attempt, progress
        self._control = control
        self._ticket = ""
        headers = {JOB: control.job_uid, ATTEMPT_HEADER: str(control.attempt), DRIVER: secrets.token_hex(8)}
        authorization = {"Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(headers=headers | authorization)

    async def apply(self, control: Control) -> None:
        """A new control message."""
        self._control = control

    def heartbeat(self, count: int) -> None:
        self._progress.heartbeat(count)

    def awaiting(self, what: str) -> None:
        self._progress.update(awaiting=what)

    async def ready(self, backend: str) -> None:
        self._progress.update(backend=backend, phase="serving")
        self._progress.flush()

    async def next(self) -> NextWork:
        self._progress.heartbeat()  # an idle service is not stalled
        draining = self._control.command == "drain"
        answer = await self._ask(draining)
        if answer is None:
            return {"over": "drained"} if draining else {}
        self._ticket, body = answer
        return Arrays({"work": len(body)}, [np.frombuffer(body, np.uint8)])  # type: ignore[return-value]

    async def done(self, arrays: dict[str, Array]) -> None:
        headers = {TICKET: self._ticket}
        body = arrays["result"].tobytes()
        await self._until(lambda: self._session.post(self._url(DONE), data=body, headers=headers))

    async def end(self) -> None:
        self._progress.update(phase="finishing")
        self._progress.flush()

    async def close(self) -> None:
        await self._session.close()

    def _url(self, path: str) -> str:
        """At the gateway that there is now. Raises ConnectionError while there is none."""
        if not self._control.gateway:
            raise aiohttp.ClientConnectionError("it does not run")
        return self._control.gateway + path

    async def _ask(self, draining: bool) -> tuple[str, bytes] | None:
        """The ticket and body of the next piece. None: there is none now, or the gateway does not answer."""
        endpoints = [endpoint.dump() for endpoint in self._control.rollouts]
        body = {"rollouts": endpoints, "failed": self._control.failed_attempt}
        parameters = {DRAINING: ""} if draining else {}
        try:
            async with self._session.post(self._url(NEXT), json=body, params=parameters) as response:
                _check(response, self._attempt)
                work = await response.read()
                return (response.headers[TICKET], work) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("the gateway does not answer: %s", error)
            await asyncio.sleep(NEXT_SECONDS)
            return None

    async def _until(self, post: Callable[[], Any]) -> None:
        """Post until the gateway has taken it: the next piece comes after that."""
        while True:
            try:
                async with post() as response:
                    _check(response, self._attempt)
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("the gateway does not answer: %s", error)
                await asyncio.sleep(RETRY_SECONDS)


def _check(response: aiohttp.ClientResponse, attempt: int) -> None:
    """Raises AttemptSuperseded when the attempt is over, ClientResponseError for other failures."""
    if response.status == 409:
        raise AttemptSuperseded(attempt, attempt + 1)
    response.raise_for_status()
