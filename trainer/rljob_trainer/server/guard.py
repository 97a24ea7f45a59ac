"""The common part of the middlewares of rollout and pool servers: authorization, the health of the engine, and calls to all of its copies.

GET /health (kubelet) and GET /metrics (Prometheus) are open. All other routes need the job's token (401).

A server may have data-parallel copies of its model. vLLM has an engine for each copy, and one client of all of them in the API server, which
spreads requests, and passes everything else to all (0.32, v1/engine/core_client.py, DPLBAsyncMPClient). `engine`: vLLM's AsyncLLM.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rljob_api import names
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import Gate

OPEN_ROUTES = {("GET", "/health"), ("GET", "/metrics")}
POLICY_VIOLATION = 1008
"""Close code of a websocket (RFC 6455, 7.4.1)."""
SILENCE_SECONDS = 2.0
"""How long the API server waits for its engine before it reports its silence."""


def copies(engine: Any) -> int:
    """How many the server has."""
    return int(engine.vllm_config.parallel_config.data_parallel_size)


async def all_workers(engine: Any, method: str, *args: Any) -> list[Any]:
    """Call a method of all workers of all copies. Returns their answers, copy by copy; AsyncLLM.collective_rpc has those of the first copy only.

    Raises what one of them raises.
    """
    answers = await engine.engine_core.call_utility_all_async("collective_rpc", method, None, args, None)
    return [answer for workers in answers for answer in workers]


async def moves(engine: Any) -> None:
    """Returns when the engines of all copies have answered, which they do between two of their steps. Raises when one has failed."""
    await engine.engine_core.call_utility_all_async("is_scheduler_paused")


class EngineClock:
    """In the API server: measures for how long the engine has not answered. At most one request to the engine is pending."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._question: asyncio.Future[Any] | None = None

    async def silence(self, ask: Callable[[], Awaitable[Any]]) -> float:
        """0 if the engine answers within SILENCE_SECONDS, else the seconds since the pending request was sent. Raises what `ask` raises."""
        if self._question is None:
            self._asked, self._question = time.monotonic(), asyncio.ensure_future(ask())
        await asyncio.wait({self._question}, timeout=SILENCE_SECONDS)
        if not self._question.done():
            return time.monotonic() - self._asked
        question, self._question = self._question, None
        question.result()
        return 0.0


class Guard(ABC):
    """An ASGI middleware, which vLLM imports by name (`--middleware`). Token and current attempt come from the environment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._clock = app, EngineClock()
        self._gate = Gate(os.environ[names.ENV_ROLLOUT_TOKEN], int(os.environ.get(names.ENV_ATTEMPT, "0")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif scope["type"] != "http" or (scope["method"], scope["path"]) in OPEN_ROUTES:
            await self._app(scope, receive, send)
        else:
            request = Request(scope, receive)
            if self._gate.knows(request.headers.get("authorization", "")):
                await self._admitted(request, send)
            else:
                await error(401, "a bearer token is required")(scope, receive, send)

    @abstractmethod
    async def _admitted(self, request: Request, send: Send) -> None:
        """Answer an authorized request."""

    async def _health(self, request: Request, updating: bool) -> JSONResponse:
        """The health of the engine, from a request to its main loop that costs it nothing."""
        try:
            silence = await self._clock.silence(partial(moves, request.app.state.engine_client))
        except Exception as problem:
            return error(500, f"{type(problem).__name__}: {problem}")
        return JSONResponse({"silence": silence, "updating": updating})


def error(status: int, text: str, **more: int) -> JSONResponse:
    return JSONResponse({"error": text} | more, status)


class PoolFront(Guard):
    """The middleware of pool servers: authorization and health. Every other route is vLLM's own."""

    async def _admitted(self, request: Request, send: Send) -> None:
        route = request.method, request.url.path
        if route == ("GET", protocol.HEALTH):
            answer = await self._health(request, updating=False)
            await answer(request.scope, request.receive, send)
        elif route == ("GET", protocol.STATE):
            await JSONResponse({})(request.scope, request.receive, send)
        else:
            await self._app(request.scope, request.receive, send)
