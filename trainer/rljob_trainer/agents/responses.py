"""The responses API of the endpoint: OpenAI's requests and answers, over the turns of a session.

A conversation is the request's whole `input`, of messages, calls and what they returned: nothing is kept between requests.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rljob_trainer.agents.api import PolicyError, message_of
from rljob_trainer.agents.chat_completions import (
    MODEL,
    NOT_ENFORCED,
    ResponseFormat,
    callable_tools,
    require_parallel,
    require_unset,
    several,
)
from rljob_trainer.agents.messages import text_of
from rljob_trainer.agents.session import Session

FUNCTION = ("name", "description", "parameters", "strict")


class TextOptions(BaseModel):
    format: ResponseFormat | None = None


class ResponsesRequest(BaseModel):
    """What is read of a request."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None

    def require_served(self) -> None:
        """Raises PolicyError for what is not."""
        kept = "nothing is kept between requests: repeat the conversation in `input`"
        require_unset(self, ("previous_response_id", "conversation", "background"), kept)
        require_unset(self, ("max_tool_calls",), "it is for tools that the server runs, and nobody here runs any")
        require_parallel(self.parallel_tool_calls)
        kind = self.text.format.type if self.text and self.text.format else "text"
        if kind != "text":
            raise PolicyError(f"text.format: {kind} is not served, only text: {NOT_ENFORCED}")


async def respond(session: Session, asked: ResponsesRequest) -> dict[str, Any]:
    """A response; an incomplete one when maxTurns or maxTokens leave no room for it. Raises PolicyError, and what the rollouts raise."""
    asked.require_served()
    shown = [_tool(tool) for tool in asked.tools or ()]
    tools = callable_tools(shown, asked.tool_choice)
    messages = [*_instructions(asked), *messages_of(asked.input)]
    context = await session.context(messages, shown)
    limits = {"max_tokens": asked.max_output_tokens, "stop": None}
    (turn,) = await several(session, messages, context, limits, tools, 1)
    message = message_of(turn)
    if turn:
        session.conversations.add(messages, message, context + turn["tokens"])
    return _response(asked, message, len(context), turn)


def _instructions(asked: ResponsesRequest) -> list[dict[str, Any]]:
    return [{"role": "system", "content": asked.instructions}] if asked.instructions else []


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """In the form of chat completions, which templates show. Raises PolicyError."""
    if tool.get("type") != "function":
        raise PolicyError(f"tools: type {tool.get('type')} is not served, only function: nobody here runs it")
    return {"type": "function", "function": {key: tool[key] for key in FUNCTION if tool.get(key) is not None}}


def messages_of(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a conversation. What one turn of the policy's said is one message: reasoning, text and calls, in this order. Raises PolicyError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in given:
        _add(item, messages)
    return messages


def _add(item: Mapping[str, Any], messages: list[dict[str, Any]]) -> None:
    """Append what an item of `input` says to the messages."""
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
    elif kind == "message" and role != "assistant":
        messages.append({"role": role, "content": item.get("content")})
    elif kind in ("message", "reasoning", "function_call"):
        if not messages or _begins_another(kind, messages[-1]):
            messages.append({"role": "assistant"})
        _continue(messages[-1], kind, item)
    else:
        raise PolicyError(f"input: an item of type {kind} is not served")


def _begins_another(kind: str, last: Mapping[str, Any]) -> bool:
    """Whether an item of the assistant's is not of the turn of which `last` is the message so far."""
    if last["role"] != "assistant":
        return True
    return kind != "function_call" and ("content" in last or "tool_calls" in last)


def _continue(message: dict[str, Any], kind: str, item: Mapping[str, Any]) -> None:
    """Add an item to the assistant's message."""
    if kind == "message":
        message["content"] = item.get("content")
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    else:
        message["reasoning"] = message.get("reasoning", "") + text_of(item.get("content"))


def _response(
    asked: ResponsesRequest, message: Mapping[str, Any], read: int, turn: Mapping[str, Any] | None
) -> dict[str, Any]:
    cut, written = turn is None or turn["finish_reason"] == "length", len(turn["tokens"]) if turn else 0
    return {
        "id": f"resp_{secrets.token_hex(8)}",
        "object": "response",
        "created_at": int(time.time()),
        "model": MODEL,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": list(_items(message)),
        "tools": asked.tools or [],
        "tool_choice": asked.tool_choice or "auto",
        "parallel_tool_calls": True,
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Of a response's output."""
    reasoning = message.get("reasoning")
    if reasoning:
        text = {"type": "reasoning_text", "text": reasoning}
        yield {"type": "reasoning", "id": f"rs_{secrets.token_hex(8)}", "summary": [], "content": [text]}
    if message["content"] or not message.get("tool_calls"):
        text = {"type": "output_text", "text": message["content"], "annotations": []}
        name = f"msg_{secrets.token_hex(8)}"
        yield {"type": "message", "id": name, "role": "assistant", "status": "completed", "content": [text]}
    for call in message.get("tool_calls", ()):
        said = {"call_id": call["id"], **call["function"], "status": "completed"}
        yield {"type": "function_call", "id": f"fc_{secrets.token_hex(8)}", **said}


def events(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The response as a stream's events, each with its number: every item in one piece."""
    begun = answer | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    sent: Iterable[dict[str, Any]] = (
        {"type": "response.created", "response": begun},
        *(event for place, item in enumerate(answer["output"]) for event in _of_item(place, item)),
        {"type": f"response.{answer['status']}", "response": answer},
    )
    return ({**event, "sequence_number": number} for number, event in enumerate(sent))


def _of_item(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = {"output_index": place}
    part = {**at, "item_id": item["id"], "content_index": 0}
    if item["type"] == "message":
        (text,) = item["content"]
        yield {"type": "response.output_item.added", **at, "item": item | {"content": [], "status": "in_progress"}}
        yield {"type": "response.content_part.added", **part, "part": text | {"text": ""}}
        yield {"type": "response.output_text.delta", **part, "delta": text["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **part, "text": text["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **part, "part": text}
    elif item["type"] == "function_call":
        said, call = item["arguments"], {**at, "item_id": item["id"]}
        yield {"type": "response.output_item.added", **at, "item": item | {"arguments": "", "status": "in_progress"}}
        yield {"type": "response.function_call_arguments.delta", **call, "delta": said}
        yield {"type": "response.function_call_arguments.done", **call, "name": item["name"], "arguments": said}
    else:
        yield {"type": "response.output_item.added", **at, "item": item}
    yield {"type": "response.output_item.done", **at, "item": item}
