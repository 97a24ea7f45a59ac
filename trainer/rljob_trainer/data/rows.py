"""Records to rows: which columns hold prompt, answer and data source. Everything a user can get wrong here names file and row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.conversations import (
    SYSTEM_COLUMNS,
    Messages,
    chat_in,
    plain,
    system_in,
    tools_of,
    with_system,
)
from rljob_trainer.data.files import ABSENT, Place, Record, columns, find, read_records, short
from rljob_trainer.data.pictures import lifted, require_none_unread

_NO_TEXTS = (list, tuple, dict, bytes)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt as it stands in a file."""

    prompt: str | Messages
    """A text, or chat messages of which the last is not the assistant's."""
    answer: str
    """Empty when the file has none."""
    data_source: str
    """Empty when the file has none: entries of spec.rewards for `*` apply to the row."""
    place: Place
    images: tuple[Any, ...] = ()
    """As the file gives them. Messages say `<image>` where one stands."""
    system: str = ""
    """Of a text: what its column `system` says. In messages it is the first."""
    tools: list[Any] | None = None
    """What the policy may call, as JSON schemas: of its column `tools`."""


def read_rows(spec: DataSpec, files: Iterable[Place]) -> Iterator[Row]:
    """All rows of the files, in their order, one at a time, by the keys of spec.data.

    Raises ConfigurationError, naming file and row, for whatever cannot be used.
    """
    keys = (spec.prompt_key, spec.answer_key, spec.data_source_key, *filter(None, (spec.image_key,)))
    keys = (*keys, *SYSTEM_COLUMNS, "tools")
    for file in files:
        for place, record in read_records(file, keys):
            texts, images = lifted(record, spec.image_key, place) if spec.image_key else (record, ())
            prompt, system = prompt_in(spec.prompt_key, texts, place), system_in(record, place)
            said = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
            require_none_unread(said, spec.image_key, partial(columns, place, record), place)
            yield Row(
                prompt if isinstance(prompt, str) else with_system(prompt, system, place),
                _scalar("answer", spec.answer_key, record, place),
                _scalar("data_source", spec.data_source_key, record, place),
                place,
                images,
                system if isinstance(prompt, str) else "",
                tools_of(record.get("tools"), place),
            )


def answer_in(record: Record, spec: DataSpec) -> Any:
    """The answer as its column holds it; empty where there is none."""
    value = find(spec.answer_key, record)
    return "" if value is None or value is ABSENT else value


PLACES_OF_ANSWERS = (
    "reward_model.ground_truth",
    "ground_truth",
    "answer",
    "solution",
    "label",
    "target",
    "gold",
    "response",
    "output",
    "extra_info.answer",
    "extra_info.ground_truth",
    "metadata.answer",
    "answers",
)
"""Where data sets have their answers: verl's first."""


def answers_elsewhere(file: Place, setting: str) -> str:
    """What to do about rows without an answer, by the first row of their file. `setting`: `set KEY`."""
    place, record = next(read_records(file, ()))
    values = [(path, find(path, record)) for path in PLACES_OF_ANSWERS]
    answers = [(path, value) for path, value in values if _is_answer(value)]
    meant = f"{setting} to the one of answers"
    if answers:
        path, value = answers[0]
        meant = f"{setting} to {path}, which holds {short(value)}"
    return f"{meant}; its columns are {', '.join(columns(place, record))}"


def _is_answer(value: Any) -> bool:
    return value is not ABSENT and not isinstance(value, _NO_TEXTS) and value not in (None, "")


def _scalar(field: str, key: str, record: Record, place: Place) -> str:
    """As Python's str() writes it. Null is empty, and so is NaN, as which pandas writes it; so is a column that is absent under its default name, for
    files that need none."""
    value = find(key, record)
    if value is None or value != value or (value is ABSENT and key == DataSpec.model_fields[f"{field}_key"].default):
        return ""
    if value is ABSENT:
        raise _missing(f"{field}_key", key, record, place)
    if isinstance(value, _NO_TEXTS):
        rule = f"column {key!r} holds {short(value)}, which is not a single text, number or truth value"
        raise place.error(rule, "name a path into it (a.b), or write it as a text, which your reward may parse")
    return str(value)


def prompt_in(key: str, record: Record, place: Place) -> str | Messages:
    """The text or the messages of a column. Raises ConfigurationError for anything else."""
    value = find(key, record)
    if value is ABSENT:
        raise _missing("prompt_key", key, record, place)
    if isinstance(value, str) and value.strip():
        chat = chat_in(value)
        return _messages(key, chat, place) if chat else value
    if isinstance(value, list) and value:
        return _messages(key, value, place)
    rule = f"column {key!r} holds {short(value)}, which is neither a text nor a list of messages"
    raise place.error(rule, "write prompts as non-empty texts or lists of {role, content}, or leave the row out")


def _messages(key: str, value: list, place: Place) -> Messages:
    messages = tuple(_message(key, message, place) for message in value)
    if messages[-1]["role"] == "assistant":
        rule = f"the last message of column {key!r} is the assistant's, so that the response would stand in the prompt"
        raise place.error(rule, "end the messages with the user's, and put the response into the answer column")
    return messages


def _message(key: str, value: Any, place: Place) -> Mapping[str, Any]:
    """One message, whose content may be missing next to calls of tools."""
    role, content = (value.get(k) if isinstance(value, Mapping) else None for k in ("role", "content"))
    if not isinstance(role, str) or not role or (content is None and not value.get("tool_calls")):
        rule = f"column {key!r} holds {short(value)}, which is not a message {{role, content}} of two texts"
        raise place.error(rule, "write every message as an object with role and content")
    return plain(role, content, {k: v for k, v in value.items() if k not in ("role", "content")}, key, place)


def _missing(field: str, key: str, record: Record, place: Place) -> Exception:
    spec_field = {"prompt_key": "promptKey", "answer_key": "answerKey", "data_source_key": "dataSourceKey"}[field]
    rule = f"has no column {key!r}; its columns are {', '.join(columns(place, record)) or 'none'}"
    return place.error(rule, f"set spec.data.{spec_field} to one of them, or to a path (a.b) into one")
