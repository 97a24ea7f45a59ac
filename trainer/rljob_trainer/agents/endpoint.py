"""The policy as an OpenAI-compatible endpoint, for agents that talk through a client library: one base URL for each trajectory.

POST /SESSION/v1/chat/completions, on loopback, or on the pod's address for agents in pods of their own. `messages`, `tools`, `max_tokens` (or
`max_completion_tokens`), `stop`, `n`, `logprobs` and `stream` are read. Temperature, seed and the like are the job's, whatever is asked for. A stream
begins when the whole answer is there: it is for clients that know no other way. Errors have OpenAI's statuses and bodies: 400 for what cannot be
answered, with the code context_length_exceeded where the model's context is too short for it, and 503 where the rollouts failed, which ends the
attempt. What a client no longer waits for is not generated to its end, and is no answer of the trajectory, though it counts for maxTurns.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Iterator
from typing import Annotated, Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, Field, ValidationError

from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.session import Session
from rljob_trainer.agents.tool_calls import CALL
from rljob_trainer.machine import loopback

MODEL = "policy"
MOST_CHOICES = 128
"""Answers to one request, as OpenAI has it. Each is a turn."""


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """What is read of a request."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    """Of other tokens than the one that was written nothing is known."""

    @property
    def limits(self) -> dict[str, Any]:
        """As Policy.generate has them."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {"max_tokens": self.max_completion_tokens or self.max_tokens, "stop": stop}


class Endpoint:
    """Of one driver. Call `start` before the first trajectory and `stop` after the last."""

    def __init__(self, address: str = "") -> None:
        """`address`: at which it listens; empty: on loopback."""
        self._host = address or loopback()
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._address = ""

    async def start(self) -> None:
        """On a port that is free."""
        app = web.Application(client_max_size=2**26, middlewares=[_errors_as_json])
        app.add_routes([web.post("/{session}/v1/chat/completions", self._completions)])
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
        self._sessions[name] = session
        return f"{self._address}/{name}/v1"

    def close(self, url: str) -> None:
        """The trajectory has ended."""
        self._sessions.pop(url.rsplit("/", 2)[1], None)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            return _error(404, "there is no such trajectory, or it has ended")
        try:
            asked = ChatRequest.model_validate(await request.json())
        except ValidationError as error:
            return _error(400, _first_of(error))
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        answer = await _answered(session, asked)
        if isinstance(answer, web.Response):
            return answer
        return await _streamed(request, asked, answer) if asked.stream else web.json_response(answer)


async def _answered(session: Session, asked: ChatRequest) -> dict[str, Any] | web.Response:
    """A chat completion, or the error in its place."""
    try:
        return await _answer(session, asked)
    except PolicyError as error:
        return _error(400, str(error), error.code)
    except Exception as error:
        session.fail(error)
        return _error(503, f"{type(error).__name__}: {error}")


async def _answer(session: Session, asked: ChatRequest) -> dict[str, Any]:
    """A chat completion; an empty one, cut off, when maxTurns or maxTokens leave no room for it."""
    context = session.conversations.context(asked.messages, asked.tools or [])
    turns = await _turns(session, asked, context)
    written = sum(len(turn["tokens"]) for turn in turns if turn)
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [_choice(session, asked, context, i, turn) for i, turn in enumerate(turns)],
        "usage": {
            "prompt_tokens": len(context),
            "completion_tokens": written,
            "total_tokens": len(context) + written,
        },
    }


async def _turns(session: Session, asked: ChatRequest, context: list[int]) -> list[dict[str, Any] | None]:
    """One for each choice. The first error of any is raised, and ends the others."""
    arguments = {"context": context, **asked.limits}
    try:
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(session.answer("generate", arguments)) for _ in range(asked.n or 1)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [turn.result() for turn in turns]


def _choice(
    session: Session, asked: ChatRequest, context: list[int], index: int, turn: dict[str, Any] | None
) -> dict[str, Any]:
    """One answer, which the conversations know from here on."""
    message = _message(turn["text"] if turn else "")
    if turn:
        session.conversations.add(asked.messages, message, context + turn["tokens"])
    reason = turn["finish_reason"] if turn else "length"
    called = "tool_calls" in message and reason == "stop"
    known = {"logprobs": {"content": _log_probs(session, turn)}} if asked.logprobs else {}
    return {"index": index, "message": message, "finish_reason": "tool_calls" if called else reason} | known


def _log_probs(session: Session, turn: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Of each token that was written."""
    found = []
    for token, log_prob in zip(turn["tokens"], turn["log_probs"], strict=True) if turn else ():
        text = session.text_of(token)
        as_bytes = list(text.encode(errors="replace"))
        found.append({"token": text, "logprob": log_prob, "bytes": as_bytes, "top_logprobs": []})
    return found


async def _streamed(request: web.Request, asked: ChatRequest, answer: dict[str, Any]) -> web.StreamResponse:
    """As server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in _chunks(answer, bool(asked.stream_options and asked.stream_options.include_usage)):
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _chunks(answer: dict[str, Any], with_usage: bool) -> Iterator[dict[str, Any]]:
    """Each choice whole, then why it ended."""
    head = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        delta = dict(choice["message"])
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        index, log_probs = choice["index"], choice.get("logprobs")
        said = {"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": None}
        yield head | {"choices": [said]}
        yield head | {"choices": [{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if with_usage:
        yield head | {"choices": [], "usage": answer["usage"]}


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
