"""Which entries of spec.rewards score a data source. Both driver and ranks use this, so no torch here."""

from collections.abc import Sequence

from rljob_api.spec.model import RewardSpec
from rljob_trainer.rewards.rules import number

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
    fix = "name the column of the answers in spec.data.answerKey, or mend the row"
    for i, entry in entries:
        if entry.rule and not answer.strip():
            return f"has no answer, which the rule {entry.rule} of spec.rewards[{i}] compares with", fix
        if entry.rule == "number" and number(answer) is None:
            return f"the answer {answer[:80]!r} holds no number, and spec.rewards[{i}] compares numbers", fix
    return None
