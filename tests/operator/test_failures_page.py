"""docs/failures.md says of every reason what reasons.py says, and what it costs. `pytest -s` prints the tables."""

import re
from pathlib import Path

from rljob_api import reasons

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
COSTS = (
    (reasons.COUNTED, "a restart that counts against maxRestarts, after a back-off"),
    (reasons.NOT_COUNTED - reasons.DELAYED, "a restart that does not count"),
    (reasons.DELAYED, "a restart that does not count, after a back-off"),
    (frozenset({reasons.CONFIGURATION_ERROR}), "the job"),
)


def tables() -> list[str]:
    ends = [f"| {r} | {reasons.MEANING[r]} | {cost} |" for group, cost in COSTS for r in sorted(group)]
    return ends + [f"| {r} | {said} |" for r, said in reasons.OUTCOMES.items()]


def test_the_page_has_every_end_as_the_constants_say_it() -> None:
    print("\n".join(tables()))
    lines = PAGE.read_text().splitlines()
    missing = [row for row in tables() if row not in lines]
    assert not missing, "\n".join(missing)
    rows = [line for line in lines if re.match(r"\| [A-Z][A-Za-z]+ \|", line)]
    assert sorted(rows) == sorted(tables()), "a row that the constants do not know"


def test_every_end_has_a_cost() -> None:
    assert frozenset().union(*(group for group, _ in COSTS)) == reasons.FAILURES
