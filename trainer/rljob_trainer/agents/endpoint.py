"""The policy as an OpenAI-compatible endpoint, for agents that talk through a client library: one base URL for each trajectory.

POST /SESSION/v1/chat/completions, on loopback. `messages`, `tools`, `max_tokens` (or `max_completion_tokens`) and `stop` are read. Temperature, seed
and the like are the job's, whatever is asked for; `n` above 1 and `stream` are refused. Errors have OpenAI's statuses and bodies: 400 for what cannot
be answered, with the code context_length_exceeded where the model's context is too short for it, and 503 where the rollouts failed, which ends the
attempt. What a client no longer waits for is not generated to its end, and is no answer of the trajectory, though it counts for maxTurns.
"""

import json
import re
import secrets
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.session import Session
from rljob_trainer.agents.tool_calls import CALL
from rljob_trainer.machine import loopback

MODEL = "policy"


class ChatRequest(BaseModel):
    """What is read of a request."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    n: int | None = None

    @property
    def limits(self) -> dict[str, Any]:
        """As Policy.generate has them."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {"max_tokens": self.max_completion_tokens or self.max_tokens, "stop": stop}


class Endpoint:
    """Of one driver. Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._address = ""

    async def start(self) -> None:
        """On a port that is free."""
        app = web.Application(client_max_size=2**26, middlewares=[_errors_as_json])
        app.add_routes([web.post("/{session}/v1/chat/completions", self._completions)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, loopback(), 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: Session) -> str:
        """The base URL of a trajectory. Nobody can guess another's."""
        name = secrets.token_urlsafe(16)
        self._sessions[name] = session
        return f"{self._address}/{name}/v1"

    def close(self, url: str) -> None:
        """The trajectory has ended."""
        self._sessions.pop(url.rsplit("/", 2)[1], None)

    async def _completions(self, request: web.Request) -> web.Response:
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            return _error(404, "there is no such trajectory, or it has ended")
        try:
            asked = ChatRequest.model_validate(await request.json())
        except ValidationError as error:
            return _error(400, _first_of(error))
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        if asked.stream or (asked.n or 1) != 1:
            return _error(400, "neither stream nor n above 1 is supported")
        return await _answered(session, asked)


async def _answered(session: Session, asked: ChatRequest) -> web.Response:
    try:
        return web.json_response(await _answer(session, asked))
    except PolicyError as error:
        return _error(400, str(error), error.code)
    except Exception as error:
        session.fail(error)
        return _error(503, f"{type(error).__name__}: {error}")


async def _answer(session: Session, asked: ChatRequest) -> dict[str, Any]:
    """A chat completion; an empty one, cut off, when maxTurns or maxTokens leave no room for it."""
    context = session.conversations.context(asked.messages, asked.tools or [])
    turn = await session.answer("generate", {"context": context, **asked.limits})
    message = _message(turn["text"] if turn else "")
    if turn:
        session.conversations.add(asked.messages, message, context + turn["tokens"])
    reason = turn["finish_reason"] if turn else "length"
    written = len(turn["tokens"]) if turn else 0
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if "tool_calls" in message and reason == "stop" else reason,
            }
        ],
        "usage": {
            "prompt_tokens": len(context),
            "completion_tokens": written,
            "total_tokens": len(context) + written,
        },
    }


def _message(text: str) -> dict[str, Any]:
    """With calls in Hermes' format as OpenAI's tool calls. What cannot be read as one stays in the text."""
    calls = []
    for found in CALL.finditer(text):
        try:
            said = json.loads(found[1])
            function = {"name": said["name"], "arguments": json.dumps(said.get("arguments") or {})}
        except (ValueError, TypeError, KeyError, RecursionError):  # a policy may open any number of brackets
            return {"role": "assistant", "content": text}
        calls.append({"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function})
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": re.sub(CALL, "", text).strip(), "tool_calls": calls}


def _first_of(error: ValidationError) -> str:
    """What is wrong, and where."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"


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
