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
FIX = "name a template that writes it in spec.data.chatTemplate.path, or leave it out of the rows (spec.data.custom)"


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The shape of a message: what it has, and not what it says."""

    role: str
    text: bool
    calls: bool
    thought: str = ""
    """Key of its thought; of the last message only, since templates leave out those of earlier turns on purpose."""


def require_written(
    tokenizer: Tokenizer, messages: Messages, tools: object, arguments: Mapping[str, Any], place: Place
) -> None:
    """Raises ConfigurationError where the template leaves out a message, its calls, its thought, or the functions (`tools`, if there are any)."""
    parts = tuple(_part(message, i == len(messages) - 1) for i, message in enumerate(messages))
    missing = left_out(tokenizer, parts, bool(tools), json.dumps(arguments, sort_keys=True, default=str))
    if missing:
        raise place.error(f"the model's chat template leaves out {missing}", FIX)


def _part(message: Message, last: bool) -> MessageShape:
    assistant = message["role"] == "assistant"
    thoughts = (key for key in THOUGHTS if last and assistant and str(message.get(key) or "").strip())
    return MessageShape(
        message["role"], _has_text(message["content"]), bool(message.get("tool_calls")), next(thoughts, "")
    )


def _has_text(content: Any) -> bool:
    """`content`: a text, or parts, as messages with images have them."""
    return bool(content.strip()) if isinstance(content, str) else any(part.get("text") for part in content)


@lru_cache(maxsize=4096)
def left_out(tokenizer: Tokenizer, parts: Sequence[MessageShape], tools: bool, arguments: str) -> str:
    """The first thing that a conversation of this shape loses; empty: none. `arguments`: of the template, as JSON.

    A conversation with a word of its own in each place is rendered, and the words are looked for. One that the template refuses loses nothing: it
    also refuses the row, or asks for what only real messages have.
    """
    said = [_message(i, part) for i, part in enumerate(parts)]
    how = {"add_generation_prompt": parts[-1].role != "assistant", "tokenize": False, **json.loads(arguments)}
    try:
        text = tokenizer.apply_chat_template(said, tools=[_function()] if tools else None, **how)
    except Exception:  # templates are programs, and raise what they like
        return ""
    return next((name for word, name in _words(parts, tools) if word not in text), "")


def _words(parts: Sequence[MessageShape], tools: bool) -> Iterator[tuple[str, str]]:
    """Each word, and what it stands for."""
    if tools:
        yield _word("tools", 0), "the functions that may be called (tools)"
    for i, part in enumerate(parts):
        whose = f"message {i + 1}, of the role {part.role!r}"
        if part.text:
            yield _word("content", i), f"the content of {whose}"
        if part.calls:
            yield _word("calls", i), f"the calls of {whose}"
        if part.thought:
            yield _word("thought", i), f"{part.thought!r} of {whose}"


def _word(kind: str, i: int) -> str:
    """Letters and digits only, which templates that strip or quote leave as they are."""
    return f"probe{kind}{i}x"


def _message(i: int, part: MessageShape) -> dict[str, Any]:
    message: dict[str, Any] = {"role": part.role, "content": _word("content", i) if part.text else ""}
    if part.thought:
        message[part.thought] = _word("thought", i)
    if part.calls:
        function = {"name": "f", "arguments": {_word("calls", i): 1}}
        message["tool_calls"] = [{"id": CALL_ID, "type": "function", "function": function}]
    if part.role in ("tool", "function"):
        message |= {"name": "f", "tool_call_id": CALL_ID}
    return message


def _function() -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    function = {"name": _word("tools", 0), "description": "", "parameters": parameters}
    return {"type": "function", "function": function}
