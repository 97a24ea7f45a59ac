"""Rows that cover pairs of settings."""

from itertools import combinations

from trainer.megatron.config_fields import Setting
from trainer.megatron.config_rows import Row, rows, smallest

SETTINGS = [Setting((f"field {i}",), value) for i in range(8) for value in range(1, 4)]


def holds(row: Row, *pair: int) -> bool:
    return {Setting((f"field {i}",), 1) for i in pair} <= {*row}


def test_all_pairs_that_are_possible_occur_and_none_that_is_not() -> None:
    found = [*rows(SETTINGS, lambda row: not holds(row, 2, 5), seed=1, most=100)]
    covered = {frozenset(pair) for row in found for pair in combinations(row, 2)}
    apart = {frozenset(pair) for pair in combinations(SETTINGS, 2) if pair[0].path != pair[1].path}
    assert apart - covered == {frozenset((Setting(("field 2",), 1), Setting(("field 5",), 1)))}
    assert len(found) < len(apart) / 5
    assert all(len({one.path for one in row}) == len(row) >= 7 for row in found)


def test_a_value_that_is_possible_with_another_only_occurs_with_it() -> None:
    needs = lambda row: not holds(row, 3) or holds(row, 3, 4)  # noqa: E731
    found = [row for row in rows(SETTINGS, needs, seed=1, most=100) if holds(row, 3)]
    assert found
    assert all(holds(row, 3, 4) for row in found)


def test_the_smallest_wrong_part_of_a_row_is_found_by_few_questions() -> None:
    asked: list[Row] = []

    def wrong(row: Row) -> bool:
        asked.append(row)
        return holds(row, 1, 6)

    row = [Setting((f"field {i}",), 1) for i in range(60)]
    assert {*smallest(row, wrong)} == {Setting(("field 1",), 1), Setting(("field 6",), 1)}
    assert len(asked) < 20
