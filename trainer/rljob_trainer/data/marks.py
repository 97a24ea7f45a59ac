"""Marks by which messages say whether they are to be learnt: `weight: 0` of OpenAI and Mistral, `loss_mask`, `step_loss_mask` of slime, `train` and
`training` of axolotl, `trainable` of verl, `loss` and `loss_scale` of ms-swift, AgentInstruct and XTuner, `masked` of torchtune."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rljob_trainer.data.files import Place, short

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
TRUTHS = {"0": False, "false": False, "1": True, "true": True}
"""By the value as a text; True is "true", 1.0 is "1"."""
Message = Mapping[str, Any]


def unmarked(messages: Iterable[Message]) -> tuple[Message, ...]:
    """As the chat template is to read them."""
    return tuple({k: v for k, v in message.items() if k not in MARKS} for message in messages)


def silent_turns(
    messages: Sequence[Message], place: Place, loss_on: Literal["assistant", "lastAssistant", "all"]
) -> tuple[int, ...]:
    """The assistant's turns that are marked as not to be learnt.

    Raises ConfigurationError for marks that contradict each other or spec.data.lossOn, and for those that are neither yes nor no.
    """
    said = {i: mark for i, message in enumerate(messages) if (mark := _mark(message, place)) is not None}
    others = [i for i, mark in said.items() if mark and messages[i]["role"] != "assistant"]
    if loss_on == "all" and not all(said.values()):
        rule = "marks a message as not to be learnt, and spec.data.lossOn: all learns every token"
        raise place.error(rule, "set spec.data.lossOn: assistant, or remove the mark")
    if loss_on != "all" and others and not all(said.values()):
        rule = f"marks message {others[0] + 1}, of the {messages[others[0]]['role']}, as to be learnt, and spec.data.lossOn: {loss_on} does not"
        raise place.error(rule, "remove the mark: only the assistant's turns are learnt")
    return tuple(i for i, mark in said.items() if not mark and messages[i]["role"] == "assistant")


def require_learnt(messages: Sequence[Message], start: int, place: Place) -> None:
    """Raises ConfigurationError where a message from `start` on, which an answer of a pair begins with, is marked as not to be learnt: answers are
    compared as a whole."""
    for i in silent_turns(messages, place, "assistant"):
        if i >= start:
            rule = f"marks message {i + 1} as not to be learnt, and the two answers of a pair are compared as a whole"
            raise place.error(rule, "remove the mark, or leave the row out")


def _mark(message: Message, place: Place) -> bool | None:
    """Whether it is to be learnt. None: it does not say. What other roles than the assistant's mean by such a key may be anything."""
    ours = message["role"] == "assistant"
    found: dict[str, bool] = {}
    for key in MARKS & message.keys():
        if message[key] is None:
            continue
        truth = TRUTHS.get(_text(message[key])) if key not in REFUSED else None
        if truth is not None:
            found[key] = truth if key in LEARNT else not truth
        elif ours:
            rule = f"a message has {key!r}: {short(message[key])}, which does not say whether all of it is to be learnt"
            raise place.error(
                rule, f"write {LEARNT[0]!r}: 0 for a message that is not to be learnt, and 1 or nothing for others"
            )
    if len(set(found.values())) > 1:
        rule = f"a message has {' and '.join(f'{k!r}: {short(message[k])}' for k in sorted(found))}, which contradict each other"
        raise place.error(rule, "keep one of them")
    return next(iter(found.values()), None)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).strip().lower()
