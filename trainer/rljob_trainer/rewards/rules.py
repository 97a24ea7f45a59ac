"""Rules: which entries of spec.rewards score a row, and those that are cheap enough for the driver's own process. No torch here: ranks ask too."""

import re
from collections.abc import Callable, Mapping, Sequence

from rljob_api.spec.model import RewardSpec
from rljob_trainer.rewards.boxes import boxed
from rljob_trainer.rewards.final_number import number, number_text

COMPOSITE = re.compile(
    r"\\(?:sqrt|pi|log|ln|sin|cos|tan|infty|cup|begin|pm)(?![a-z])|[\[(]\s*-?[\d.]+,\s+-?[\d.]+\s*[\])]"
)
"""More than a number: of it, the rule `number` would compare the last one."""


def exact_match(response: str, answer: str) -> float:
    """1 when response and answer, both stripped, are equal, else 0."""
    return float(response.strip() == answer.strip())


def number_match(response: str, answer: str) -> float:
    """1 when the final numbers of response and answer are equal, else 0; also 0 for a response without any."""
    found = number(response)
    return float(found is not None and found == number(answer))


def stripped(response: str) -> str | None:
    """What `exactMatch` compares; None when nothing is left."""
    return response.strip() or None


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
        if entry.rule and not (answer if entry.rule == "exactMatch" else answer.rsplit("####", 1)[-1]).strip():
            return f"has no answer, which the rule {entry.rule} of spec.rewards[{i}] compares with", fix
        if entry.rule == "number" and number(answer) is None:
            return f"the answer {answer[:80]!r} holds no number, and spec.rewards[{i}] compares numbers", fix
        if entry.rule == "number" and "####" not in answer and COMPOSITE.search(boxed(answer) or answer):
            rule = f"the answer {answer[:80]!r} is more than a number, and spec.rewards[{i}] compares numbers"
            return rule, f"set spec.rewards[{i}].rule: math, or correct the row"
    return None
