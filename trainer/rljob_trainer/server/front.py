"""The ASGI middleware of a rollout server: authorization, attempt fence, weight updates, and generation once the weights are current.

Open routes and the token are those of guard.py. Routes that generate, ours and vLLM's own, are available only while a policy of the current attempt
is served; what a response says (the parse route) needs none. Statuses: 400 invalid header or body, 401 no token, 409 a higher attempt owns the
server (body: `attempt`), 503 no weights yet, 500 an update failed (body: `error`).

The parse route answers 200 with Parsed, {"unusable": why} where the parser does not fit the model, or {"unread": why} where it took too long; 500
where the process that reads cannot be started.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Send

from rljob_trainer.server.generate import adapters_of, cache_tokens, generate
from rljob_trainer.server.guard import Guard, error
from rljob_trainer.server.parser_process import TurnReader
from rljob_trainer.server.sample import sample
from rljob_trainer.server.weights.updates import UpdateError, WeightUpdates
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import AttemptSuperseded, Gate, PolicyVersion
from rljob_trainer.workers.process import WorkerLost


class Escaped(JSONResponse):
    """In ASCII: the arguments of a call may hold half a character, which UTF-8 does not have."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


async def parse(request: Request) -> JSONResponse:
    """The response of the route."""
    try:
        body = await request.json()
    except ValueError as problem:
        return error(400, f"{type(problem).__name__}: {problem}")
    try:
        answer = await _reader(request.app.state).read(body)
    except WorkerLost as lost:
        return error(500, f"the process that reads responses: {lost}")
    return error(400, answer["refused"]) if "refused" in answer else Escaped(answer)


def _reader(state: Any) -> TurnReader:
    """Of this server: made for its first request."""
    if not hasattr(state, "turn_reader"):
        model = state.engine_client.model_config
        state.turn_reader = TurnReader.of(model.model, model.trust_remote_code, model.tokenizer_mode)
    reader: TurnReader = state.turn_reader
    return reader


class Front(Guard):
    """The middleware of rollout servers."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app)
        self._weights = updates = WeightUpdates(self._gate)
        self._updates: dict[tuple[str, str], Callable[[Any, int, dict[str, Any]], Awaitable[dict[str, Any] | None]]] = {
            ("POST", protocol.OPEN): updates.open,
            ("POST", protocol.COMMIT): updates.commit,
            ("POST", protocol.ABORT): updates.abort,
            ("POST", protocol.SLEEP): updates.sleep,
            ("POST", protocol.INTERRUPT): updates.interrupt,
        }

    async def _admitted(self, request: Request, send: Send) -> None:
        scope, receive = request.scope, request.receive
        answer = self._refusal(request) or await self._own_route(request)
        policy = self._gate.served() if answer is None else None
        if answer is not None:
            await answer(scope, receive, send)
        elif policy is None:
            await self._not_ready()(scope, receive, send)
        else:
            _let_all_routes_use_adapters(request.app.state)
            if (scope["method"], scope["path"]) == ("POST", protocol.GENERATE):
                await generate(policy, scope, receive, _tagged(send, policy))
            elif (scope["method"], scope["path"]) == ("POST", protocol.SAMPLE):
                samples = await sample(request, policy.step)
                await samples(scope, receive, send)
            else:
                await self._app(scope, receive, _tagged(send, policy, self._gate))

    def _refusal(self, request: Request) -> JSONResponse | None:
        """The error response to a request of a lower attempt; None: admitted. A higher attempt becomes the highest."""
        attempt = request.headers.get(protocol.ATTEMPT_HEADER)
        if attempt:
            try:
                self._gate.fence.admit(int(attempt))
            except AttemptSuperseded as fenced:
                return _fenced(fenced)
            except ValueError:
                return error(400, f"{protocol.ATTEMPT_HEADER}: {attempt!r} is not a number")
        return None

    async def _own_route(self, request: Request) -> JSONResponse | None:
        """The response of one of our routes; None for routes that need a policy: those of vLLM, and generate."""
        route = request.method, request.url.path
        if route == ("GET", protocol.STATE):
            return JSONResponse(self._gate.state() | {"cache_tokens": cache_tokens(request.app.state.engine_client)})
        if route == ("GET", protocol.HEALTH):
            return await self._health(request, self._weights.running)
        if route == ("POST", protocol.PARSE):
            return await parse(request)
        if route not in self._updates:
            return None
        if protocol.ATTEMPT_HEADER not in request.headers:
            return error(400, f"{protocol.ATTEMPT_HEADER} is required")
        engine = request.app.state.engine_client
        try:
            attempt = int(request.headers[protocol.ATTEMPT_HEADER])
            answer = await self._updates[route](engine, attempt, await request.json())
        except AttemptSuperseded as fenced:
            return _fenced(fenced)
        except UpdateError as problem:
            return error(500, str(problem))
        except (KeyError, ValueError) as problem:
            return error(400, f"body: {type(problem).__name__}: {problem}")
        return JSONResponse(answer or {})

    def _not_ready(self) -> JSONResponse:
        highest = self._gate.fence.highest
        return error(503, f"weights of attempt {highest} have not been published to this server", attempt=highest)


def _tagged(send: Send, policy: PolicyVersion, gate: Gate | None = None) -> Send:
    """Add the header with the step of the policy that was served when the request arrived. `gate`: only if it still is, for routes whose answers do
    not say which tokens are of a later one."""

    async def tag(message: Message) -> None:
        if message["type"] == "http.response.start" and (gate is None or gate.served() == policy):
            header = protocol.STEP_HEADER.lower().encode(), str(policy.step).encode()
            message["headers"] = [*message["headers"], header]
        await send(message)

    return tag


def _let_all_routes_use_adapters(state: Any) -> None:
    """Register the adapters under the name of the served model, where vLLM's own routes look up a request's `model`."""
    adapters = adapters_of(state.engine_client)
    if adapters:
        state.openai_serving_models.lora_requests[protocol.SERVED_MODEL] = adapters


def _fenced(fenced: AttemptSuperseded) -> JSONResponse:
    return error(409, str(fenced), attempt=fenced.highest)
