"""What a conversation may hold: messages, calls, and functions to call. An agent may say any JSON, and is answered what is wrong with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from rljob_trainer.agents.api import Message, PolicyError
from rljob_trainer.data.conversations import ROLES
from rljob_trainer.data.files import short

TEXTS = (None, "text", "input_text", "output_text", "reasoning_text")
"""Types of a part of a message that are its text."""
IMAGES = ("image_url", "input_image", "image")
"""Types of a part that is an image: of chat completions, of responses, and of chat templates."""


class _CalledFunction(BaseModel):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(BaseModel):
    function: _CalledFunction


class _Message(BaseModel):
    role: str
    content: str | list[Any] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Parameters(BaseModel):
    properties: dict[str, Any] | None = None


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: _Parameters | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


def plain(message: Message) -> dict[str, Any]:
    """Without reasoning and what clients add or leave out, and with content as a text: messages of one meaning are equal. Raises PolicyError."""
    if "role" not in message:
        raise PolicyError("a message has no role")
    try:
        role = _Message.model_validate(message).role
    except ValidationError as error:
        raise PolicyError(f"a message: {first_of(error)}") from error
    if role not in ROLES:
        raise PolicyError(f"a message has the unknown role {short(role)}: use one of {', '.join(ROLES)}")
    read = {"role": role, "content": _content(message.get("content"), role)}
    return read | {key: message[key] for key in ("tool_calls", "name", "tool_call_id") if message.get(key)}


def reasoning_of(message: Message) -> str:
    """Under either of its names; empty where the message says none."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def text_of(content: Any) -> str:
    """A text, or the texts of its parts. Raises PolicyError for what is neither."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise PolicyError(f"content: {short(content)} is neither a text nor a list of parts")
    return "".join(map(_text, content))


def sources_of(messages: Sequence[Message]) -> list[str]:
    """Addresses of the images that the messages show, in their order. Raises PolicyError."""
    contents = [message.get("content") for message in messages]
    return [_source(part) for content in contents if isinstance(content, list) for part in content if _is_image(part)]


def _content(content: Any, role: str) -> Any:
    """A text; with images a list of parts, as chat templates read it. Raises PolicyError."""
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return text_of(content)
    if role == "assistant":
        raise PolicyError("a message of the assistant has an image, and the policy writes none")
    return [
        {"type": "image", "image": _source(p)} if _is_image(p) else {"type": "text", "text": _text(p)} for p in content
    ]


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in IMAGES


def _source(part: Mapping[str, Any]) -> str:
    """The address of an image. Raises PolicyError."""
    given = part.get("image_url", part.get("image"))
    source = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(source, str):
        raise PolicyError(f"an image of a message has the address {short(source)}, which is no text")
    return source


def _text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(part, Mapping) or kind not in TEXTS:
        raise PolicyError(
            f"a part of a message is of type {kind if isinstance(kind, str) else short(kind)}, and an agent's policy reads texts and images only"
        )
    text = part.get("text")
    if not isinstance(text, str | None):
        raise PolicyError(f"a part of a message has the text {short(text)}, which is none")
    return text or ""


def require_functions(tools: Sequence[Mapping[str, Any]]) -> None:
    """Raises PolicyError for what is no function in OpenAI's form: the parsers of calls read its parameters."""
    try:
        for tool in tools:
            _Tool.model_validate(tool)
    except ValidationError as error:
        raise PolicyError(f"tools: {first_of(error)}") from error


def first_of(error: ValidationError) -> str:
    """What is wrong, and where."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
