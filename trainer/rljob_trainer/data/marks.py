"""Marks of rows and of messages that say whether they are to be learnt."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.files import Place, Record, short

LEARNT = (
    *("weight", "loss_weight", "loss_mask", "step_loss_mask", "loss", "loss_scale"),
    *("train", "training", "trainable", "learn"),
)
"""1 or true: to be learnt."""
HIDDEN = ("masked", "ignore_loss", "no_loss")
"""1 or true: not to be learnt."""
REFUSED = ("mask", "train_detail", "training_detail")
"""The first means either of both, depending on whom one asks; the others mark parts of a message."""
MARKS = frozenset((*LEARNT, *HIDDEN, *REFUSED))
ROW_MARKS = ("weight", "loss_weight", "sample_weight", "loss_mask", "trainable", *HIDDEN)
"""Columns that mark a whole row. Others of those above are too often something else there: a loss that was measured, the name of a split."""
WEIGHTS = ("loss_weight", "sample_weight")
"""Of a row, those that cannot be the weight of a thing: numbers above 1 are marks, too."""
TRUTHS = {"false": 0.0, "true": 1.0}
IN_PART = 0.5
"""The share of what is to be learnt in part, where nobody asks how large it is."""


def unmarked(messages: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """As the chat template is to read them."""
    return tuple({k: v for k, v in message.items() if k not in MARKS} for message in messages)


def is_silent(record: Record, place: Place, data: DataSpec) -> bool:
    """Whether a row is marked, as a whole, as not to be learnt. Raises ConfigurationError for one that is to count in part, and for answers that are
    marked as bad ones, which `sft` would learn."""
    read = _read_columns(data)
    _require_good(record, place, read)
    shares = {key: _share(record[key], key in WEIGHTS) for key in ROW_MARKS if key in record and key not in read}
    partly = next((key for key, share in shares.items() if share not in (None, 0, 1)), None)
    if partly:
        rule = f"has {partly!r}: {short(record[partly])}, and a row is learnt wholly or not at all"
        raise place.error(
            rule, "write 0 or 1, repeat rows that are to count more (spec.data.custom), or rename the column"
        )
    return any(share == (key in HIDDEN) for key, share in shares.items() if share is not None)


def _read_columns(data: DataSpec) -> set[str]:
    """Those that the spec names, which are texts or messages, whatever they are called."""
    keys = [getattr(data, field) for field in DataSpec.model_fields if field.endswith("_key")]
    return {part for key in keys if key for part in (key, key.partition(".")[0])}


def _require_good(record: Record, place: Place, read: set[str]) -> None:
    """Raises ConfigurationError for a bad answer of KTO's data. Elsewhere a column `label` is any class."""
    of_kto = "prompt" in record and "completion" in record and "label" not in read
    if (of_kto and record.get("label") is False) or record.get("kto_tag") is False:
        rule = "is labelled as a bad answer, as in data for KTO (label: false), and spec.task: sft would learn it"
        raise place.error(
            rule, "leave the row out (spec.data.custom), or give a column that means something else another name"
        )


def _share(value: Any, above_one: bool = False) -> float | None:
    """How much of something a mark says is meant: 1 all, 0 nothing, else a part. None: it says nothing, as null, NaN (pandas' null), or what is no
    number, truth value, text of one, or list of those. `above_one`: numbers above 1 are marks."""
    if isinstance(value, list):
        shares = {_share(part, above_one) for part in value}
        return shares.pop() if len(shares) == 1 else None if None in shares or not shares else IN_PART
    if isinstance(value, str):
        value = TRUTHS.get(value.strip().lower(), value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    is_mark = 0 <= number <= (math.inf if above_one else 1)
    return number if is_mark else None


def silent_turns(
    messages: Sequence[Mapping[str, Any]], place: Place, loss_on: Literal["assistant", "lastAssistant", "all"]
) -> tuple[int, ...]:
    """The assistant's turns that are marked as not to be learnt.

    Raises ConfigurationError for marks that contradict each other or spec.data.lossOn, and for those that are neither yes nor no.
    """
    marks = [_mark(message, place) for message in messages]
    said = {i: mark for i, mark in enumerate(marks) if mark is not None}
    others = [i for i, mark in said.items() if mark and messages[i]["role"] != "assistant"]
    if loss_on == "all" and not all(said.values()):
        rule = "marks a message as not to be learnt, and spec.data.lossOn: all learns every token"
        raise place.error(rule, "set spec.data.lossOn: assistant, or remove the mark")
    if loss_on != "all" and others and not all(said.values()):
        rule = f"marks message {others[0] + 1}, of the {messages[others[0]]['role']}, as to be learnt, and spec.data.lossOn: {loss_on} does not"
        raise place.error(rule, "remove the mark: only the assistant's turns are learnt")
    return tuple(i for i, mark in said.items() if not mark and messages[i]["role"] == "assistant")


def require_learnt(messages: Sequence[Mapping[str, Any]], start: int, place: Place) -> None:
    """Raises ConfigurationError where a message from `start` on, which an answer of a pair begins with, is marked as not to be learnt: answers are
    compared as a whole."""
    for i in silent_turns(messages, place, "assistant"):
        if i >= start:
            rule = f"marks message {i + 1} as not to be learnt, and the two answers of a pair are compared as a whole"
            raise place.error(rule, "remove the mark, or leave the row out")


def _mark(message: Mapping[str, Any], place: Place) -> bool | None:
    """Whether it is to be learnt. None: it does not say. What other roles than the assistant's mean by such a key may be anything."""
    ours = message["role"] == "assistant"
    marks: dict[str, bool] = {}
    for key in MARKS & message.keys():
        if message[key] is None or message[key] != message[key]:
            continue
        share = _share(message[key]) if key not in REFUSED else None
        if share in (0, 1):
            marks[key] = (share == 1) is (key in LEARNT)
        elif ours:
            rule = f"a message has {key!r}: {short(message[key])}, which does not say whether all of it is to be learnt"
            raise place.error(
                rule, f"write {LEARNT[0]!r}: 0 for a message that is not to be learnt, and 1 or nothing for others"
            )
    if len(set(marks.values())) > 1:
        rule = f"a message has {' and '.join(f'{k!r}: {short(message[k])}' for k in sorted(marks))}, which contradict each other"
        raise place.error(rule, "keep one of them")
    return next(iter(marks.values()), None)
