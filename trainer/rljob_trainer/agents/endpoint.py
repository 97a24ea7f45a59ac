"""The policy as an OpenAI-compatible endpoint, for agents that talk through a client library: one base URL for each trajectory.

POST /SESSION/v1/chat/completions and /SESSION/v1/responses, on loopback, or on the pod's address for agents in pods of their own. Of a request,
chat_completions.py and responses.py say what is read. Temperature, seed and the like are the job's, whatever is asked for. What would change what the
policy may write, such as a call or a form that is enforced, is refused. A stream begins when the whole answer is there: it is for
clients that know no other way. Errors have OpenAI's statuses and bodies: 400 for what cannot be answered, with the code context_length_exceeded where
the model's context is too short for it, and 503 where the rollouts failed, which ends the attempt. What a client no longer waits for is not generated
to its end, and is no answer of the trajectory, though it counts for maxTurns.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.chat_completions import ChatRequest, chunks, complete
from rljob_trainer.agents.messages import first_of
from rljob_trainer.agents.responses import ResponsesRequest, events, respond
from rljob_trainer.agents.session import Session
from rljob_trainer.machine import loopback

Answer = Callable[[Session, Any], Coroutine[Any, Any, dict[str, Any]]]
"""Of a request that could be read."""
ENDED = "there is no such trajectory, or it has ended"


class Endpoint:
    """Of one driver. Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self, address: str = "") -> None:
        """`address`: at which it listens; empty: on loopback."""
        self._host = address or loopback()
        self._sessions: dict[str, Session] = {}
        self._answering: dict[str, set[asyncio.Task[dict[str, Any]]]] = {}
        """Requests of each session."""
        self._runner: web.AppRunner | None = None
        self._address = ""

    async def start(self) -> None:
        """On a port that is free."""
        app = web.Application(client_max_size=2**26, middlewares=[_errors_as_json])
        routes = {"chat/completions": self._completions, "responses": self._responses}
        app.add_routes([web.post(f"/{{session}}/v1/{path}", handler) for path, handler in routes.items()])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: Session) -> str:
        """The base URL of a trajectory. Nobody can guess another's."""
        name = secrets.token_urlsafe(16)
        self._sessions[name], self._answering[name] = session, set()
        return f"{self._address}/{name}/v1"

    def close(self, url: str) -> None:
        """The trajectory has ended, and what it still asks for is not generated to its end."""
        name = url.rsplit("/", 2)[1]
        self._sessions.pop(name, None)
        for task in self._answering.pop(name, ()):
            task.cancel()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        answer = await self._answered(request, ChatRequest, complete)
        if isinstance(answer, web.Response):
            return answer
        asked, completion = answer
        return (
            await _streamed(request, chunks(completion, asked), "[DONE]")
            if asked.stream
            else web.json_response(completion)
        )

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        answer = await self._answered(request, ResponsesRequest, respond)
        if isinstance(answer, web.Response):
            return answer
        asked, response = answer
        return await _streamed(request, events(response)) if asked.stream else web.json_response(response)

    async def _answered[T: BaseModel](
        self, request: web.Request, kind: type[T], answer: Answer
    ) -> tuple[T, dict[str, Any]] | web.Response:
        """The request and its answer, or the error in their place."""
        name = request.match_info["session"]
        session = self._sessions.get(name)
        if session is None:
            return _error(404, ENDED)
        try:
            asked = kind.model_validate(await request.json())
        except ValidationError as error:
            return _error(400, first_of(error))
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        try:
            return asked, await self._until_closed(name, answer(session, asked))
        except asyncio.CancelledError:
            if name in self._sessions:  # the client has gone
                raise
            return _error(404, ENDED)
        except PolicyError as error:
            return _error(400, str(error), error.code)
        except Exception as error:
            session.fail(error)
            return _error(503, f"{type(error).__name__}: {error}")

    async def _until_closed(self, name: str, answer: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Raises CancelledError, also when the trajectory has ended meanwhile."""
        if name not in self._sessions:  # while the request was read
            answer.close()
            raise asyncio.CancelledError
        task, under_way = asyncio.create_task(answer), self._answering[name]
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        return await task


async def _streamed(request: web.Request, events: Iterable[dict[str, Any]], end: str = "") -> web.StreamResponse:
    """As server-sent events, which name their `type` where they have one. `end`: what the last one says."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
    if end:
        await response.write(f"data: {end}\n\n".encode())
    await response.write_eof()
    return response


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Also aiohttp's own, for another route or a body that is too large."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, error.text or error.reason)


def _error(status: int, text: str, code: str = "") -> web.Response:
    """As OpenAI's API says it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": text, "type": kind, "param": None, "code": code or None}
    return web.json_response({"error": body}, status=status)
