"""The ASGI middleware in front of a rollout server: token, attempt fence, weight updates, generation, and none before the weights are current.

Open routes and the token are those of guard.py. What generates, ours and vLLM's own routes, is let through only while a policy of the current
attempt is served. Statuses: 400 bad header or body, 401 no token, 409 a higher attempt holds the server (body: `attempt`), 503 no weights yet,
500 an update failed (body: `error`).
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Send

from rljob_trainer.rollout.generate import adapters_of, generate
from rljob_trainer.rollout.guard import Guard, error
from rljob_trainer.weights import protocol
from rljob_trainer.weights.protocol import AttemptSuperseded, PolicyVersion
from rljob_trainer.weights.updates import UpdateError, WeightUpdates


class Front(Guard):
    """Of rollouts."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._weights = updates = WeightUpdates(self._gate)
        self._updates: dict[tuple[str, str], Callable[[Any, int, dict[str, Any]], Awaitable[None]]] = {
            ("POST", protocol.OPEN): updates.open,
            ("POST", protocol.RECEIVE): updates.receive,
            ("POST", protocol.COMMIT): updates.commit,
            ("POST", protocol.ABORT): updates.abort,
            ("POST", protocol.SLEEP): updates.sleep,
            ("POST", protocol.INTERRUPT): updates.interrupt,
        }

    async def _admitted(self, request: Request, send: Send) -> None:
        scope, receive = request.scope, request.receive
        answer = self._refusal(request) or await self._own_route(request)
        if answer is not None:
            await answer(scope, receive, send)
        elif (policy := self._gate.served()) is None:
            await self._not_ready()(scope, receive, send)
        else:
            route = scope["method"], scope["path"]
            app = generate if route == ("POST", protocol.GENERATE) else self._app
            _let_all_routes_use_adapters(request.app.state)
            await app(scope, receive, self._tagged(send, policy))

    def _refusal(self, request: Request) -> JSONResponse | None:
        """Of a request of a lower attempt. A higher attempt becomes the highest."""
        if attempt := request.headers.get(protocol.ATTEMPT_HEADER):
            try:
                self._gate.fence.admit(int(attempt))
            except AttemptSuperseded as fenced:
                return _fenced(fenced)
            except ValueError:
                return error(400, f"{protocol.ATTEMPT_HEADER}: {attempt!r} is not a number")
        return None

    async def _own_route(self, request: Request) -> JSONResponse | None:
        """The answer of a route of ours; None when it needs a policy: those of vLLM, and generate."""
        route = request.method, request.url.path
        if route == ("GET", protocol.STATE):
            return JSONResponse(self._gate.state())
        if route == ("GET", protocol.HEALTH):
            return await self._health(request, self._weights.running)
        if route not in self._updates:
            return None
        if protocol.ATTEMPT_HEADER not in request.headers:
            return error(400, f"{protocol.ATTEMPT_HEADER} is required")
        engine = request.app.state.engine_client
        try:
            await self._updates[route](engine, int(request.headers[protocol.ATTEMPT_HEADER]), await request.json())
        except AttemptSuperseded as fenced:
            return _fenced(fenced)
        except UpdateError as problem:
            return error(500, str(problem))
        except (KeyError, ValueError) as problem:
            return error(400, f"body: {type(problem).__name__}: {problem}")
        return JSONResponse({})

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
        return error(503, f"weights of attempt {highest} have not been published to this server", attempt=highest)


def _let_all_routes_use_adapters(state: Any) -> None:
    """vLLM's own routes look up here what a request's `model` is."""
    if adapters := adapters_of(state.engine_client):
        state.openai_serving_models.lora_requests[protocol.SERVED_MODEL] = adapters


def _fenced(fenced: AttemptSuperseded) -> JSONResponse:
    return error(409, str(fenced), attempt=fenced.highest)
