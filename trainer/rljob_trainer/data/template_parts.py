"""What a chat template leaves out of a conversation. Templates are programs: of a role, of calls or of functions that they do not know, many write
nothing and say nothing, and the model would learn from, or answer, another conversation than the one in the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rljob_trainer.data.conversations import Message, Messages
from rljob_trainer.data.files import Place
from rljob_trainer.data.tokenizer import Tokenizer

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message under which data sets have what was thought before its content."""
CALL_ID = "abcdefghi"
"""Of the length that Mistral's templates ask for."""
UNSAID = (
    "the chat template leaves out what the assistant says in a turn that also calls functions (as Llama 3.1's does), so that it is not learnt: "
    "if it is to be, name another template in spec.data.chatTemplate.path"
)
FIX = "name a template that writes it in spec.data.chatTemplate.path, or leave it out of the rows (spec.data.custom)"


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The shape of a message: what it has, and not what it says."""

    role: str
    text: bool
    calls: bool
    thoughts: tuple[str, ...] = ()
    """Keys of its thought; of the last message only, since templates leave out those of earlier turns on purpose."""


def require_written(
    tokenizer: Tokenizer, messages: Messages, tools: object, arguments: Mapping[str, Any], place: Place
) -> None:
    """Raises ConfigurationError where the template leaves out a message, its calls, its thought, or the functions (`tools`, if there are any)."""
    missing = left_out(tokenizer, _shapes(messages), bool(tools), _as_json(arguments))
    if missing:
        raise place.error(f"the model's chat template leaves out {missing}", FIX)


def unsaid_before_calls(tokenizer: Tokenizer, messages: Messages, tools: object, arguments: Mapping[str, Any]) -> str:
    """What to say where the template leaves out what the assistant says in a turn that also calls functions; empty: nothing. Such rows are learnt:
    servers with this template show such turns in the same way."""
    if not any(message.get("tool_calls") for message in messages):  # as most rows
        return ""
    shapes = _shapes(messages)
    if any(map(_speaks_and_calls, shapes)) and _is_unsaid(tokenizer, shapes, bool(tools), _as_json(arguments)):
        return UNSAID
    return ""


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)


def _shapes(messages: Messages) -> tuple[MessageShape, ...]:
    return tuple(_shape(message, i == len(messages) - 1) for i, message in enumerate(messages))


def _shape(message: Message, last: bool) -> MessageShape:
    text = _text(message["content"])
    thoughts = _thoughts(message, text) if last and message["role"] == "assistant" else ()
    return MessageShape(message["role"], bool(text.strip()), bool(message.get("tool_calls")), thoughts)


def _thoughts(message: Message, text: str) -> tuple[str, ...]:
    """Keys of texts that the content does not have as well. What is no text (true, {effort: high}) is a setting."""
    said = {key: message.get(key) for key in THOUGHTS}
    return tuple(k for k, thought in said.items() if isinstance(thought, str) and thought.strip() not in text)


def _text(content: Any) -> str:
    """`content`: a text, or parts, as messages with images have them."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def _speaks_and_calls(shape: MessageShape) -> bool:
    return shape.text and shape.calls


@lru_cache(maxsize=4096)
def left_out(tokenizer: Tokenizer, shapes: Sequence[MessageShape], tools: bool, arguments: str) -> str:
    """The first thing that a conversation of these shapes loses; empty: none. `arguments`: of the template, as JSON.

    A conversation with words of its own in each place is rendered, and the words are looked for. One that the template refuses loses nothing: it
    also refuses the row, or asks for what only real messages have.
    """
    text = _rendered(tokenizer, shapes, tools, arguments)
    lost = (name for words, name in _parts(shapes, tools) if text and not any(word in text for word in words))
    return next(lost, "")


@lru_cache(maxsize=4096)
def _is_unsaid(tokenizer: Tokenizer, shapes: Sequence[MessageShape], tools: bool, arguments: str) -> bool:
    text = _rendered(tokenizer, shapes, tools, arguments)
    spoken = [_word("content", i) for i, shape in enumerate(shapes) if _speaks_and_calls(shape)]
    return bool(text) and not all(word in text for word in spoken)


def _rendered(tokenizer: Tokenizer, shapes: Sequence[MessageShape], tools: bool, arguments: str) -> str:
    """In small letters; empty: the template refuses it."""
    said = [_message(i, shape) for i, shape in enumerate(shapes)]
    how = {"add_generation_prompt": shapes[-1].role != "assistant", "tokenize": False, **json.loads(arguments)}
    try:
        return tokenizer.apply_chat_template(said, tools=[_function()] if tools else None, **how).casefold()
    except Exception:  # templates are programs, and raise what they like
        return ""


def _parts(shapes: Sequence[MessageShape], tools: bool) -> Iterator[tuple[Sequence[str], str]]:
    """What has to be written: words of which one is enough, and what they stand for. A thought may stand under several keys, and templates read
    one."""
    if tools:
        yield [_word("tools", 0)], "the functions that may be called (tools)"
    for i, shape in enumerate(shapes):
        whose = f"message {i + 1}, of the role {shape.role!r}"
        if shape.text and not shape.calls:
            yield [_word("content", i)], f"the content of {whose}"
        if shape.calls:
            yield [_word("calls", i)], f"the calls of {whose}"
        if shape.thoughts:
            yield [_word(key, i) for key in shape.thoughts], f"{shape.thoughts[0]!r} of {whose}"


def _word(kind: str, i: int) -> str:
    """Small letters and digits only, which templates that strip or quote leave as they are."""
    return f"probe{kind.replace('_', '')}{i}x"


def _message(i: int, shape: MessageShape) -> dict[str, Any]:
    message: dict[str, Any] = {"role": shape.role, "content": _word("content", i) if shape.text else ""}
    message |= {key: _word(key, i) for key in shape.thoughts}
    if shape.calls:
        function = {"name": "f", "arguments": {_word("calls", i): 1}}
        message["tool_calls"] = [{"id": CALL_ID, "type": "function", "function": function}]
    if shape.role in ("tool", "function"):
        message |= {"name": "f", "tool_call_id": CALL_ID}
    return message


def _function() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    function = {"name": _word("tools", 0), "description": "", "parameters": parameters}
    return {"type": "function", "function": function}
