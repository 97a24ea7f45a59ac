"""Many fields of a family's configuration in other values at once, so that two that are not refused occur together: the trainer says what
transformers says. Where a single field is followed, two may still contradict each other, and a field of another family may be read by one side
only."""

from pathlib import Path

import pytest

from extra import extra_but
from rljob_api.families import has_latent_attention
from rljob_api.rules.model import fitting_violations, model_violations
from trainer.megatron.config_fields import Setting, foreign, settings, with_settings
from trainer.megatron.config_parity import (
    OF_LATENTS,
    ROUNDING,
    Subject,
    difference,
    saved,
    subject,
    trained,
    training,
    wide,
)
from trainer.megatron.config_rows import Row, rows, smallest
from trainer.megatron.kinds import KINDS, TIED, make_config

REFUSED = "refused"
MOST = 12
"""Rows of a kind, each with another value of almost every field: half a minute. Few pairs are left."""
IN_TEST = ("qwen3_vl",)


class Comparison:
    """Of the trainer with transformers, for rows of settings of one kind."""

    def __init__(self, kind: str, directory: Path):
        self._kind, self._directory = kind, directory
        self._usual = make_config(kind, tied=kind in TIED)
        self._config = wide(self._usual.to_dict())
        self._spec = training(directory)
        self._last: tuple[Row, Subject | None] = ([], None)
        self._count = 0
        self.known: list[Row] = []
        """Of which is known that the trainer refuses them or is wrong."""

    @property
    def settings(self) -> list[Setting]:
        latent = has_latent_attention(self._config)
        every = [*settings(self._config), *foreign(self._config)]
        return [one for one in every if not (latent and one.path[-1] == OF_LATENTS)]

    def possible(self, row: Row) -> bool:
        """Whether neither rules nor transformers refuse it, and nothing is known of a part of it."""
        known = any(all(one in row for one in part) for part in self.known)
        return not known and self._accepted(row) and self._subject(row) is not None

    def _accepted(self, row: Row) -> bool:
        return not [*model_violations(self._spec, with_settings(self._config, row))]

    def _subject(self, row: Row) -> Subject | None:
        if self._last[0] != row:
            self._last = row, subject(self._usual, with_settings(self._config, row))
        found = self._last[1]
        resolved = found and found.model.config.to_dict()
        return None if not resolved or [*fitting_violations(self._spec, resolved)] else found

    def verdict(self, row: Row) -> str:
        """What is wrong with the trainer's log-probabilities; REFUSED where it gives none and says why, empty where they are right."""
        found = self._subject(row)
        assert found
        self._count += 1
        directory = saved(found.model, self._directory / str(self._count), self._kind, with_settings(self._config, row))
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
        return smallest(row, lambda part: self.possible(part) and alike(part))


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(IN_TEST, KINDS))
def test_fields_are_followed_together_or_refused(megatron: None, tmp_path: Path, kind: str) -> None:
    compared, wrong = compare(Comparison(kind, tmp_path), MOST)
    assert compared > 5
    assert wrong == []


def compare(comparison: Comparison, most: int) -> tuple[int, list[str]]:
    """The number of rows on which trainer and transformers agree, and the smallest settings with which they do not."""
    agreed, wrong = 0, []
    for row in rows(comparison.settings, comparison.possible, seed=7, most=most):
        verdict = comparison.verdict(row)
        agreed += not verdict
        if verdict:
            part = comparison.least(row, verdict)
            comparison.known.append(part)
            wrong += [] if verdict == REFUSED else [f"{', '.join(map(str, part))}: {comparison.verdict(part)}"]
    return agreed, wrong
