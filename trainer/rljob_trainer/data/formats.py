"""A row of supervised data to what is learnt from it: one conversation, or the better and the worse answer to the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rljob_api.spec.model import ChatTemplate, DataSpec
from rljob_trainer.data.conversations import (
    SHAREGPT_ROLES,
    Message,
    Messages,
    chat_in,
    messages_of,
    require_no_system_column,
    require_no_system_prompt,
    says_nothing,
    spoken,
    system_in,
    tools_of,
    with_system,
    with_system_prompt,
)
from rljob_trainer.data.files import ABSENT, Place, Record, find, short
from rljob_trainer.data.marks import is_silent, require_learnt, silent_turns, unmarked

LONG_PROMPT = 16
"""Characters of a prompt that no answer begins with by chance."""
Reason = Literal["too_long", "no_assistant", "masked", "empty", "equal_pair"]


class LeftOut(Exception):
    """A row from which nothing can be learnt. It is counted."""

    def __init__(self, reason: Reason):
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that ends with the assistant's turn, for the chat template."""

    messages: Messages
    tools: list[Any] | None
    learn_from: int
    """The assistant's turns from this message on are learnt."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the template reads besides."""
    silent: tuple[int, ...] = ()
    """Turns among those that are marked as not to be learnt."""

    @property
    def learnt(self) -> list[int]:
        """The turns that are learnt."""
        turns = range(self.learn_from, len(self.messages))
        return [i for i in turns if self.messages[i]["role"] == "assistant" and i not in self.silent]


@dataclass(frozen=True, slots=True)
class Texts:
    """A prompt and its response, as they stand."""

    prompt: str
    response: str


TextVariant = Chat | Texts
PromptText = Messages | str | None
"""What an answer follows; None: the answer holds the whole conversation."""


def conversation(record: Record, place: Place, data: DataSpec, form: str) -> TextVariant:
    """What `task: sft` learns from a row. Raises LeftOut, and ConfigurationError for a row of another shape than the format's."""
    if is_silent(record, place, data):
        raise LeftOut("masked")
    prompt, key = PROMPTS[form](record, place, data), _response_key(form, data)
    said = prompt if key is None else _answered(prompt, record, key, place, data)
    said = _with_system_column(said, record, place)
    if isinstance(said, Texts):
        return said
    assert isinstance(said, tuple), "formats without an answer of their own hold messages"
    turns = [i for i, message in enumerate(said) if message["role"] == "assistant"]
    if not turns:
        raise LeftOut("no_assistant")
    silent = silent_turns(said, place, data.loss_on)
    start = turns[-1] if data.loss_on == "lastAssistant" else 0
    learnt = [i for i in turns if i >= start and i not in silent]
    if not learnt:
        raise LeftOut("masked")
    shown = unmarked(said[: learnt[-1] + 1])
    return _chat(shown, tools_of(record.get("tools"), place), start, data.chat_template, silent)


def _response_key(form: str, data: DataSpec) -> str | None:
    """Column of the answer; None: the conversation holds it."""
    if form == "columns":
        return data.response_key
    return "output" if form == "alpaca" else None


def pair(record: Record, place: Place, data: DataSpec, form: str) -> tuple[TextVariant, TextVariant]:
    """The chosen and the rejected answer to the same prompt. Raises as `conversation` does."""
    prompt, keys = PROMPTS[form](record, place, data), (data.chosen_key, data.rejected_key)
    first, second = (_with_system_column(_answered(prompt, record, key, place, data), record, place) for key in keys)
    chosen, rejected = (said if isinstance(said, Texts) else unmarked(said) for said in (first, second))
    if chosen == rejected:
        raise LeftOut("equal_pair")
    if isinstance(chosen, Texts) and isinstance(rejected, Texts):
        _require_no_prompt_again(chosen, rejected, keys, place)
        return chosen, rejected
    if isinstance(chosen, Texts) or isinstance(rejected, Texts):
        rule = f"one of {keys[0]!r} and {keys[1]!r} is a text and the other holds messages"
        raise place.error(rule, "write both in the same way")
    shared = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), 0)
    if not shared:
        rule = f"{keys[0]!r} and {keys[1]!r} are not two answers to one prompt"
        raise place.error(rule, "begin both with the same messages and let neither be the beginning of the other")
    for marked in (first, second):
        require_learnt(marked, shared, place)
    tools = tools_of(record.get("tools"), place)
    return _chat(chosen, tools, shared, data.chat_template), _chat(rejected, tools, shared, data.chat_template)


def _require_no_prompt_again(chosen: Texts, rejected: Texts, keys: tuple[str, str], place: Place) -> None:
    """Raises ConfigurationError where both answers begin with their prompt, which would be read twice. A short one may be part of an answer."""
    prompt = chosen.prompt.strip()
    if len(prompt) >= LONG_PROMPT and all(one.response.lstrip().startswith(prompt) for one in (chosen, rejected)):
        rule = f"{keys[0]!r} and {keys[1]!r} begin with the prompt, which would stand there twice"
        raise place.error(rule, "cut it from the answers, or write both as messages, the prompt's in front")


def detect(record: Record, place: Place, data: DataSpec, paired: bool) -> str:
    """The format of a file whose first row this is. Raises ConfigurationError when its columns fit none."""
    if _names_columns(record, data, paired):
        return "columns"
    turns = find(_turns_key(record, data), record)
    if turns is not ABSENT:
        turns = chat_in(turns) or turns if isinstance(turns, str) else turns
        first = turns[0] if isinstance(turns, list) and turns else {}
        return "sharegpt" if isinstance(first, dict) and "from" in first else "messages"
    if "instruction" in record:
        return "alpaca"
    if all(find(key, record) is not ABSENT for key in _needed(data, paired)):
        return "columns"
    wanted = (
        f"{data.messages_key!r} or 'conversations'; 'instruction'; or {' and '.join(map(repr, _needed(data, paired)))}"
    )
    rule = f"its columns are {', '.join(record) or 'none'}, which is none of the known formats: {wanted}"
    raise place.error(rule, "set spec.data.format, or the keys under spec.data to the names of its columns")


def _names_columns(record: Record, data: DataSpec, paired: bool) -> bool:
    """Whether the spec names columns of the row for prompt or response, which then count, whatever else the row has. A whole conversation that it
    names as the prompt is one: nothing can answer it."""
    keys = {"prompt_key": data.prompt_key} | ({} if paired else {"response_key": data.response_key})
    named = any(find(key, record) is not ABSENT for name, key in keys.items() if _is_named(name, data))
    needed = {*keys.values(), *_needed(data, paired)}
    if not paired and _is_whole(find(data.prompt_key, record), data.prompt_key == _turns_key(record, data)):
        return False
    return named and not _is_named("messages_key", data) and all(find(key, record) is not ABSENT for key in needed)


def _is_whole(turns: Any, holds_messages: bool) -> bool:
    """Whether the column of conversations has one that the assistant ends."""
    turns = chat_in(turns) if isinstance(turns, str) else turns
    last = turns[-1] if holds_messages and isinstance(turns, list) and turns else None
    return isinstance(last, Mapping) and "assistant" in (last.get("role"), SHAREGPT_ROLES.get(str(last.get("from"))))


def _is_named(field: str, data: DataSpec) -> bool:
    return bool(getattr(data, field) != DataSpec.model_fields[field].default)


def _needed(data: DataSpec, paired: bool) -> tuple[str, str]:
    return (data.chosen_key, data.rejected_key) if paired else (data.prompt_key, data.response_key)


def _turns_key(record: Record, data: DataSpec) -> str:
    return data.messages_key if find(data.messages_key, record) is not ABSENT else "conversations"


def _turns(record: Record, place: Place, data: DataSpec) -> Messages:
    key = _turns_key(record, data)
    return messages_of(column(key, record, place), key, place)


def _alpaca(record: Record, place: Place, data: DataSpec) -> Messages:
    """Columns history (pairs of instruction and response), instruction and input."""
    column("instruction", record, place)
    texts = {key: _text(key, record, place) for key in ("instruction", "input")}
    said: list[Message] = []
    for turn in record.get("history") or ():
        if not isinstance(turn, (list, tuple)) or len(turn) != 2 or not all(isinstance(text, str) for text in turn):
            rule = f"column 'history' holds {short(turn)}, which is not a pair of texts"
            raise place.error(rule, "write it as a list of [instruction, response]")
        said += [spoken("user", turn[0]), spoken("assistant", turn[1])]
    asked = "\n".join(text for text in (texts["instruction"], texts["input"]) if text)
    if not asked.strip():
        raise LeftOut("empty")
    return (*said, spoken("user", asked))


def _prompt(record: Record, place: Place, data: DataSpec) -> PromptText:
    """A text or messages. Null or absent, where answers hold the whole conversation."""
    value = find(data.prompt_key, record)
    if value is ABSENT or value is None:
        return None
    _require_words(value, data.prompt_key, place)
    if isinstance(value, str) and not chat_in(value):
        if not value.strip():
            raise LeftOut("empty")
        return value
    return messages_of(value, data.prompt_key, place)


def _require_words(value: Any, key: str, place: Place) -> None:
    """Raises ConfigurationError for a number, say, where a text or messages are expected."""
    if not isinstance(value, (str, list, Mapping)):
        rule = f"column {key!r} holds {short(value)}, which is neither a text nor a list of messages"
        raise place.error(rule, "write it as a text")


def _text(key: str, record: Record, place: Place) -> str:
    """Empty when there is none."""
    value = record.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise place.error(f"column {key!r} holds {short(value)}, which is not a text", "write it as a text")


def _answered(prompt: PromptText, record: Record, key: str, place: Place, data: DataSpec) -> Messages | Texts:
    """The prompt with the answer in column `key` behind it. An answer whose messages begin with another role than the assistant's is all of it."""
    value = column(key, record, place)
    if not value or (isinstance(value, str) and not value.strip()):
        raise LeftOut("empty")
    _require_words(value, key, place)
    if isinstance(value, str) and not chat_in(value):
        if isinstance(prompt, str) and not data.chat_template.texts:
            require_no_system_prompt(data.chat_template, place)
            return Texts(prompt, value)
        said: Messages = (spoken("assistant", value),)
    else:
        said = messages_of(value, key, place)
    if said[0]["role"] != "assistant":
        return said
    if prompt is None:
        fix = "set spec.data.promptKey, or let the answer begin with the messages that it answers"
        raise place.error(f"has no column {data.prompt_key!r} that {key!r} would answer", fix)
    if not isinstance(prompt, str) and prompt[-1:] and prompt[-1]["role"] == "assistant":
        rule = f"the messages of the prompt end with the assistant's turn, and {key!r} would be another one behind it"
        raise place.error(rule, "end them with what the answer replies to")
    return (*((spoken("user", prompt),) if isinstance(prompt, str) else prompt), *said)


def _with_system_column(said: Any, record: Record, place: Place) -> Any:
    """With the text of the column `system` in front of messages. Raises ConfigurationError where it has no place."""
    system = system_in(record, place)
    if not isinstance(said, Texts):
        return with_system(said, system, place)
    require_no_system_column(system, place)
    return said


def _chat(
    messages: Messages, tools: list[Any] | None, start: int, template: ChatTemplate, silent: Sequence[int] = ()
) -> Chat:
    """Raises LeftOut when the assistant does not have the last turn, or says nothing where it is learnt."""
    if messages[-1]["role"] != "assistant":
        raise LeftOut("no_assistant")
    said = with_system_prompt(messages, template)
    more = len(said) - len(messages)
    shifted = tuple(i + more for i in silent if i < len(messages))
    chat = Chat(said, tools, start + more if start else 0, template.arguments, shifted)
    if any(says_nothing(said[i]) for i in chat.learnt):
        raise LeftOut("empty")
    return chat


def column(key: str, record: Record, place: Place) -> Any:
    value = find(key, record)
    if value is not ABSENT:
        return value
    rule = f"has no column {key!r}; its columns are {', '.join(record) or 'none'}"
    raise place.error(rule, "name the column under spec.data, or set another spec.data.format")


PROMPTS: dict[str, Callable[[Record, Place, DataSpec], PromptText]] = {
    "messages": _turns,
    "sharegpt": _turns,
    "alpaca": _alpaca,
    "columns": _prompt,
}
