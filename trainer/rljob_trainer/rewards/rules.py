"""Rules: which entries of spec.rewards score a row, and those that are cheap enough for the driver's own process. No torch here: ranks ask too."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from rljob_api.spec.model import RewardSpec

NUMBER = re.compile(r"(?:(?<![\w.)])[-\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,6}(?!\d))?")
"""With or without thousands separators; the minus is a hyphen or typesetting's sign.
One after a digit, letter or bracket is a subtraction."""
EXACT = Context(prec=1000, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Of any number that NUMBER finds in a response of ordinary length."""


def exact_match(response: str, answer: str) -> float:
    """1 when response and answer, both stripped, are equal, else 0."""
    return float(response.strip() == answer.strip())


def number_match(response: str, answer: str) -> float:
    """1 when the final numbers of response and answer are equal, else 0; also 0 for a response without any."""
    found = number(response)
    return float(found is not None and found == number(answer))


def number(text: str) -> Decimal | None:
    """The last number after the last `####`, if there is one (the convention of GSM8K, arXiv 2110.14168), else the last of the text."""
    numbers = NUMBER.findall(text.rsplit("####", 1)[-1])
    return Decimal(numbers[-1].replace(",", "").replace("\u2212", "-")) if numbers else None


def stripped(response: str) -> str | None:
    """What `exactMatch` compares; None when nothing is left."""
    return response.strip() or None


def number_text(response: str) -> str | None:
    """The final number in one form, so that 72 and 72.0 are one text; None when there is none."""
    found = number(response)
    return None if found is None else str(found.normalize(EXACT))


RULES: Mapping[str, Callable[[str, str], float]] = {"exactMatch": exact_match, "number": number_match}
PREDICTIONS: Mapping[str, Callable[[str], str | None]] = {"exactMatch": stripped, "number": number_text}
"""By the same names: the answer that a response gives."""


EVERY_OTHER = "*"


def entries_of(rewards: Sequence[RewardSpec], data_source: str) -> list[tuple[int, RewardSpec]]:
    """The entries that name `data_source`, else those of `*`, each with its index in spec.rewards.

    Those with `model` are scored by the ranks, all others by the driver. Empty: no entry scores it.
    """
    named = [(i, r) for i, r in enumerate(rewards) if r.data_source == data_source]
    return named or [(i, r) for i, r in enumerate(rewards) if r.data_source == EVERY_OTHER]


def validate_row(
    rewards: Sequence[RewardSpec], data_source: str, answer: str, by_driver: bool
) -> tuple[str, str] | None:
    """Why no entry scores a row of the data, as rule and fix. With `by_driver` the entries with `model` do not count."""
    if not rewards:  # an agent may give all there are
        return None
    entries = [(i, r) for i, r in entries_of(rewards, data_source) if not (by_driver and r.model)]
    if not entries:
        missing = "no entry of spec.rewards that scores during generation" if by_driver else "no entry of spec.rewards"
        return (
            f"{missing} is for its data source {data_source!r}",
            f"add an entry with dataSource {data_source!r} or '*'",
        )
    fix = "name the column of the answers in spec.data.answerKey, or correct the row"
    for i, entry in entries:
        if entry.rule and not answer.strip():
            return f"has no answer, which the rule {entry.rule} of spec.rewards[{i}] compares with", fix
        if entry.rule == "number" and number(answer) is None:
            return f"the answer {answer[:80]!r} holds no number, and spec.rewards[{i}] compares numbers", fix
    return None
