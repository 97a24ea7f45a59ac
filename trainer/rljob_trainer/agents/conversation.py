"""Chat messages to the tokens that the policy continues. Tokens that were generated stay as they are: only what follows them is rendered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.data.tokenizer import Tokenizer

MARK = "rljob-assistant-turn"
"""Stands for the assistant's turn while the template is asked what it writes behind one."""


def reply(
    context: Sequence[int], messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, template: ChatTemplate
) -> list[int]:
    """Tokens of `messages` behind `context`, which ends with an assistant's turn, up to where the assistant begins again. Raises PolicyError."""
    if not context:
        raise PolicyError("nothing to reply to: the context has no token")
    if not tokenizer.chat_template:
        raise PolicyError("the tokenizer in spec.model.path has no chat template")
    before = [{"role": "user", "content": MARK.upper()}, {"role": "assistant", "content": MARK}]
    try:
        text = tokenizer.apply_chat_template(
            [*before, *messages], add_generation_prompt=True, tokenize=False, **template.arguments
        )
    except Exception as error:  # templates are programs, and raise what they like
        raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
    _, mark, behind = text.partition(MARK)  # the first is ours: a message may hold another
    if not mark:
        raise PolicyError("the chat template does not write what the assistant said")
    last = tokenizer.decode([context[-1]], skip_special_tokens=False)
    return encoded(behind.removeprefix(last), tokenizer)


def encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    """Without special tokens in front or behind. Raises PolicyError: a tool's answer, for example, may hold half a character."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        raise PolicyError(f"the tokenizer cannot encode {text[:200]!r}: {error}") from error


Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Known:
    """A conversation that ends with a turn of the policy's."""

    messages: list[dict[str, Any]]
    tokens: list[int]


class Conversations:
    """Of one trajectory, whose agent says the whole conversation every time it asks."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate):
        self._tokenizer, self._template = tokenizer, template
        self._known: list[_Known] = []

    def context(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """What the policy continues: behind the longest conversation that these messages begin with, or from their first on. Raises PolicyError."""
        said = [_plain(message) for message in messages]
        beginnings = (k for k in self._known if said[: len(k.messages)] == k.messages and len(said) > len(k.messages))
        if known := max(beginnings, key=lambda k: len(k.messages), default=None):
            rest = reply(known.tokens, said[len(known.messages) :], self._tokenizer, self._template)
            return known.tokens + rest
        return self._rendered(said, tools)

    def add(self, messages: Sequence[Message], answer: Message, tokens: list[int]) -> None:
        """The policy answered, and `tokens` are those of the whole conversation."""
        self._known.append(_Known([_plain(message) for message in (*messages, answer)], tokens))

    def _rendered(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        if not self._tokenizer.chat_template:
            raise PolicyError("the tokenizer in spec.model.path has no chat template")
        how: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False, **self._template.arguments}
        try:
            text = self._tokenizer.apply_chat_template(messages, list(tools) or None, **how)
        except Exception as error:  # templates are programs, and raise what they like
            raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
        return encoded(text, self._tokenizer)


def _plain(message: Message) -> dict[str, Any]:
    """Without what clients add, and with content as a text: messages of one meaning are equal. Raises PolicyError."""
    if "role" not in message:
        raise PolicyError("a message has no role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    found = {"role": message["role"], "content": content or ""}
    return found | {key: message[key] for key in ("tool_calls", "name", "tool_call_id") if message.get(key)}
