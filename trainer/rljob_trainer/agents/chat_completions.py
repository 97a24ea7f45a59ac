"""Chat completions of the endpoint: OpenAI's requests and answers, over the turns of a session."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rljob_trainer.agents.api import Message, PolicyError, message_of
from rljob_trainer.agents.session import Session

MODEL = "policy"
MOST_CHOICES = 128
"""Answers to one request, as OpenAI has it. Each is a turn."""
NOT_ENFORCED = "samples are drawn from the policy's own distribution, so nothing makes it answer in a form"
OUTDATED = "give functions as `tools`, and whether they may be called as `tool_choice`"


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    type: str


class ChatRequest(BaseModel):
    """What is read of a request."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    """Of other tokens than the one that was written nothing is known."""
    functions: Any = None
    function_call: Any = None
    parallel_tool_calls: bool | None = None

    @property
    def limits(self) -> dict[str, Any]:
        """As Policy.generate has them."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {"max_tokens": self.max_completion_tokens or self.max_tokens, "stop": stop}


def require_unset(asked: BaseModel, names: Sequence[str], why: str) -> None:
    """Raises PolicyError for fields that are not served."""
    for name in names:
        if getattr(asked, name):
            raise PolicyError(f"{name} is not served: {why}")


def require_parallel(allowed: bool | None) -> None:
    """Raises PolicyError where a turn is to have one call at most."""
    if allowed is False:
        raise PolicyError(f"parallel_tool_calls: false is not served: {NOT_ENFORCED}")


def callable_tools(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> list[Mapping[str, Any]]:
    """Those whose calls are read. Raises PolicyError for a choice that would have to be enforced."""
    if choice not in (None, "auto", "none"):
        raise PolicyError(f"tool_choice: {choice!r} is not served, only auto and none: {NOT_ENFORCED}")
    return [] if choice == "none" else [*(tools or ())]


async def complete(session: Session, asked: ChatRequest) -> dict[str, Any]:
    """A chat completion; an empty one, cut off, when maxTurns or maxTokens leave no room for it. Raises PolicyError, and what the rollouts raise."""
    require_unset(asked, ("functions", "function_call"), OUTDATED)
    require_parallel(asked.parallel_tool_calls)
    if asked.response_format and asked.response_format.type != "text":
        raise PolicyError(f"response_format: {asked.response_format.type} is not served, only text: {NOT_ENFORCED}")
    tools = callable_tools(asked.tools, asked.tool_choice)
    context = await session.context(asked.messages, asked.tools or [])
    turns = await several(session, asked.messages, context, asked.limits, tools, asked.n or 1)
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


async def several(
    session: Session,
    messages: Sequence[Message],
    context: list[int],
    limits: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    count: int,
) -> list[dict[str, Any] | None]:
    """So many turns behind a context, as which these messages were rendered. The first error of any is raised, and ends the others."""
    arguments = {"context": context, "messages": [*messages], "tools": tools, **limits}
    try:
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(session.answer("generate", arguments)) for _ in range(count)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [turn.result() for turn in turns]


def _choice(
    session: Session, asked: ChatRequest, context: list[int], index: int, turn: dict[str, Any] | None
) -> dict[str, Any]:
    """One answer, which the conversations know from here on."""
    message = message_of(turn)
    if turn:
        session.conversations.add(asked.messages, message, context + turn["tokens"])
    reason = turn["finish_reason"] if turn else "length"
    called = "tool_calls" in message and reason == "stop"
    known = {"logprobs": {"content": _log_probs(session, turn)}} if asked.logprobs else {}
    return {"index": index, "message": message, "finish_reason": "tool_calls" if called else reason} | known


def _log_probs(session: Session, turn: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Of each token that was written."""
    content = []
    for token, log_prob in zip(turn["tokens"], turn["log_probs"], strict=True) if turn else ():
        text = session.text_of(token)
        as_bytes = list(text.encode(errors="replace"))
        content.append({"token": text, "logprob": log_prob, "bytes": as_bytes, "top_logprobs": []})
    return content


def chunks(answer: dict[str, Any], asked: ChatRequest) -> Iterator[dict[str, Any]]:
    """The answer as a stream's events: each choice whole, then why it ended."""
    head = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        delta = dict(choice["message"])
        calls = delta.get("tool_calls")
        if calls:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        index, log_probs = choice["index"], choice.get("logprobs")
        said = {"index": index, "delta": delta, "logprobs": log_probs, "finish_reason": None}
        yield head | {"choices": [said]}
        yield head | {"choices": [{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if asked.stream_options and asked.stream_options.include_usage:
        yield head | {"choices": [], "usage": answer["usage"]}
