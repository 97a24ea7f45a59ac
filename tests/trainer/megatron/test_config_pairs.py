"""Many fields of a family's configuration in other values at once, so that two that are not refused occur together: the trainer says what
transformers says. Where a single field is followed, two may still contradict each other, and a field of another family may be read by one side
only."""

from pathlib import Path

import pytest

from extra import extra_but
from trainer.megatron.config_drawn import Drawn
from trainer.megatron.config_parity import ROUNDING, difference, saved, trained, training
from trainer.megatron.config_rows import Row, rows, smallest
from trainer.megatron.kinds import KINDS, TIED, make_config

REFUSED = "refused"
MOST = 12
"""Rows of a kind, each with another value of almost every field: half a minute. Few pairs are left."""
IN_TEST = ("qwen3_vl",)


class Comparison:
    """Of the trainer with transformers, for rows of settings of one kind."""

    def __init__(self, kind: str, directory: Path):
        self._directory = directory
        self.drawn = Drawn(make_config(kind, tied=kind in TIED), training(directory))
        self._count = 0

    def verdict(self, row: Row) -> str:
        """What is wrong with the trainer's log-probabilities; REFUSED where it gives none and says why, empty where they are right."""
        found = self.drawn.subject(row)
        assert found
        self._count += 1
        directory = saved(found.model, self._directory / str(self._count), self.drawn.config(row))
        try:
            said = trained(directory, found.samples)
        except AssertionError as failure:
            return str(failure).strip().splitlines()[-1]
        if said is None:
            return REFUSED
        error = difference(said, found.said)
        return f"off by {error:.1e}" if error > 3 * ROUNDING else ""

    def least(self, row: Row, verdict: str) -> Row:
        """The smallest part of it of which the same can be said."""
        refused = verdict == REFUSED
        alike = lambda part: bool(found := self.verdict(part)) and (found == REFUSED) is refused  # noqa: E731
        return smallest(row, lambda part: self.drawn.possible(part) and alike(part))


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(IN_TEST, KINDS))
def test_fields_are_followed_together_or_refused(megatron: None, tmp_path: Path, kind: str) -> None:
    compared, wrong = compare(Comparison(kind, tmp_path), MOST)
    assert compared > 5
    assert wrong == []


def compare(comparison: Comparison, most: int) -> tuple[int, list[str]]:
    """The number of rows on which trainer and transformers agree, and the smallest settings with which they do not."""
    agreed, wrong, drawn = 0, [], comparison.drawn
    for row in rows(drawn.settings, drawn.possible, seed=7, most=most):
        verdict = comparison.verdict(row)
        agreed += not verdict
        if verdict:
            part = comparison.least(row, verdict)
            drawn.known.append(part)
            wrong += [] if verdict == REFUSED else [f"{', '.join(map(str, part))}: {comparison.verdict(part)}"]
    return agreed, wrong
