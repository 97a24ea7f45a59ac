"""The ASGI middleware in front of vLLM's server: token, attempt fence, weight updates, generation, and none before the weights are current.

Open routes are GET /health (kubelet) and GET /metrics (Prometheus). Everything else needs the job's token; what generates, ours and vLLM's
own routes, is let through only while a policy of the current attempt is served. Statuses: 400 bad header or body, 401 no token, 409 a higher
attempt holds the server (body: `attempt`), 503 no weights yet, 500 an update failed (body: `error`).
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rljob_api import names
from rljob_trainer.rollout.generate import generate
from rljob_trainer.rollout.health import EngineClock
from rljob_trainer.weights import protocol
from rljob_trainer.weights.gate import Gate
from rljob_trainer.weights.protocol import AttemptSuperseded, PolicyVersion
from rljob_trainer.weights.updates import UpdateError, WeightUpdates

OPEN_ROUTES = {("GET", "/health"), ("GET", "/metrics")}
POLICY_VIOLATION = 1008
"""Close code of a websocket (RFC 6455, 7.4.1)."""


class Front:
    """Given to vLLM by name (`--middleware`); reads the token and the first attempt from the environment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._gate = Gate(os.environ[names.ENV_ROLLOUT_TOKEN], int(os.environ.get(names.ENV_ATTEMPT, "0")))
        self._clock, self._weights = EngineClock(), WeightUpdates(self._gate)
        updates = self._weights
        self._updates: dict[tuple[str, str], Callable[[Any, int, dict[str, Any]], Awaitable[None]]] = {
            ("POST", protocol.OPEN): updates.open,
            ("POST", protocol.BUCKET): updates.bucket,
            ("POST", protocol.COMMIT): updates.commit,
            ("POST", protocol.ABORT): updates.abort,
            ("POST", protocol.SLEEP): updates.sleep,
            ("POST", protocol.INTERRUPT): updates.interrupt,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif scope["type"] != "http" or (scope["method"], scope["path"]) in OPEN_ROUTES:
            await self._app(scope, receive, send)
        else:
            request = Request(scope, receive)
            answer = self._refusal(request) or await self._own_route(request)
            if answer is not None:
                await answer(scope, receive, send)
            elif (policy := self._gate.served()) is None:
                await self._not_ready()(scope, receive, send)
            else:
                route = scope["method"], scope["path"]
                app = generate if route == ("POST", protocol.GENERATE) else self._app
                await app(scope, receive, self._tagged(send, policy))

    def _refusal(self, request: Request) -> JSONResponse | None:
        """Of a request without the token or of a lower attempt. A higher attempt becomes the highest."""
        if not self._gate.knows(request.headers.get("authorization", "")):
            return _error(401, "a bearer token is required")
        if attempt := request.headers.get(protocol.ATTEMPT_HEADER):
            try:
                self._gate.fence.admit(int(attempt))
            except AttemptSuperseded as fenced:
                return _fenced(fenced)
            except ValueError:
                return _error(400, f"{protocol.ATTEMPT_HEADER}: {attempt!r} is not a number")
        return None

    async def _own_route(self, request: Request) -> JSONResponse | None:
        """The answer of a route of ours; None when it needs a policy: those of vLLM, and generate."""
        route = request.method, request.url.path
        if route == ("GET", protocol.STATE):
            return JSONResponse(self._gate.state())
        if route == ("GET", protocol.HEALTH):
            return await self._health(request.app.state.engine_client)
        if route not in self._updates:
            return None
        if protocol.ATTEMPT_HEADER not in request.headers:
            return _error(400, f"{protocol.ATTEMPT_HEADER} is required")
        engine = request.app.state.engine_client
        try:
            await self._updates[route](engine, int(request.headers[protocol.ATTEMPT_HEADER]), await request.json())
        except AttemptSuperseded as fenced:
            return _fenced(fenced)
        except UpdateError as error:
            return _error(500, str(error))
        except (KeyError, ValueError) as error:
            return _error(400, f"body: {type(error).__name__}: {error}")
        return JSONResponse({})

    async def _health(self, engine: Any) -> JSONResponse:
        """Asks the engine's own loop a question that costs it nothing."""
        try:
            silence = await self._clock.silence(engine.is_paused)
        except Exception as error:
            return _error(500, f"{type(error).__name__}: {error}")
        return JSONResponse({"silence": silence, "updating": self._weights.running})

    def _tagged(self, send: Send, policy: PolicyVersion) -> Send:
        """Say which policy generated the answer: the one that let the request in, if it is still served. An update aborts what is in flight,
        but a request that comes to the engine behind it is drawn by the next policy."""

        async def tag(message: Message) -> None:
            if message["type"] == "http.response.start" and self._gate.served() == policy:
                header = protocol.STEP_HEADER.lower().encode(), str(policy.step).encode()
                message["headers"] = [*message["headers"], header]
            await send(message)

        return tag

    def _not_ready(self) -> JSONResponse:
        highest = self._gate.fence.highest
        return _error(503, f"weights of attempt {highest} have not been published to this server", attempt=highest)


def _error(status: int, text: str, **more: int) -> JSONResponse:
    return JSONResponse({"error": text} | more, status)


def _fenced(fenced: AttemptSuperseded) -> JSONResponse:
    return _error(409, str(fenced), attempt=fenced.highest)
