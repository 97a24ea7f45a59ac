"""Every key of every table: a value that says something ends in the job, in the report, or in an error, and never nowhere."""

import re
from functools import cache
from typing import Any

import pytest

from importer.test_golden_files import CASES, HERE, result
from importer.test_values import options_of
from rljob_import import SYSTEMS as NAMES
from rljob_import.engine import convert
from rljob_import.reference import tables
from rljob_import.settings import System
from rljob_import.systems import SYSTEMS
from rljob_import.table import Outcome, Row, lacks, must, same_value

TABLES = {table.title: table for reader in SYSTEMS.values() for table in reader.tables}
SWITCHED: tuple[Any, ...] = (None, True, False, 7, "a word")
OTHERS: tuple[Any, ...] = (7, None)
"""Values that are tried of keys that an RLJob cannot say, and of all others."""


def test_the_verb_names_the_systems_that_are_read() -> None:
    assert tuple(SYSTEMS) == NAMES


@cache
def base(title: str) -> tuple[str, dict[str, Any]]:
    """A configuration that this table holds for: its file, and its values by key."""
    for case in CASES:
        reader = SYSTEMS[case.split("/")[0]]
        source = reader.read((HERE / case).read_text(), CASES[case].environment)
        if source.system is TABLES[title]:
            return case, source.values
    raise LookupError(title)


def says_nothing(row: Row, value: Any) -> bool:
    """By the row alone: the other system's default, or one that the row lists."""
    quiet = (None,) if row.outcome is Outcome.IMPLIED else row.neutral if row.outcome else (row.default,)
    return any(same_value(value, neutral) for neutral in quiet)


def named(row: Row) -> str:
    """A key of the row's, also where it holds for all keys below one."""
    return row.key.replace("*", min(row.known, default="some_key")) if row.key.endswith("*") else row.key


def silent(table: System, row: Row, value: Any) -> bool:
    """Whether neither a field's comment nor a note nor a problem names the key."""
    case, values = base(table.title)
    others = {key: given for key, given in values.items() if key not in (row.key, *row.also)}
    found = convert(table, others | {named(row): value}, options_of(case))
    said = [
        *(field.source for field in found.fields.values()),
        *(note.key for note in found.notes),
        *(problem.key for problem in found.problems),
    ]
    return not re.search(rf"(?<![\w.]){re.escape(named(row))}(?![\w.])", "\n".join(said))


@pytest.mark.parametrize("title", TABLES)
def test_no_value_of_any_key_ends_nowhere(title: str) -> None:
    table = TABLES[title]
    for row in table.rows:
        values = SWITCHED if row.outcome in (Outcome.LACKING, Outcome.CHANGED) else OTHERS
        lost = [value for value in values if not says_nothing(row, value) and silent(table, row, value)]
        assert not lost, f"{title}: {named(row)} = {lost} is in no field, note or problem"


def test_a_switch_that_is_on_by_default_is_reported_when_it_is_off() -> None:
    on, off, wide = lacks("on", "", True), lacks("off", ""), lacks("wide", "", 1, 1.0)
    assert [says_nothing(on, value) for value in (True, False, None, 1)] == [True, False, False, False]
    assert [says_nothing(off, value) for value in (True, False, None, 0)] == [False, True, True, False]
    assert [says_nothing(wide, value) for value in (1, None, True, 0.9)] == [True, True, False, False]
    assert [says_nothing(must("must", True, ""), value) for value in (True, False, None)] == [True, False, False]


@pytest.mark.parametrize("case", CASES)
def test_no_key_of_a_configuration_ends_nowhere(case: str) -> None:
    """Those of the examples, whose value is not the default."""
    source = SYSTEMS[case.split("/")[0]].read((HERE / case).read_text(), CASES[case].environment)
    found = result(case)
    names = {name: row for row in source.system.rows for name in (row.key, *row.also)}
    for key, value in source.values.items():
        if key in names and not says_nothing(names[key], value) and value != {}:
            assert re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", found.manifest + found.report), key


def test_the_second_name_of_a_key_is_said() -> None:
    table, (case, values) = TABLES["verl"], base("verl")
    both = values | {"custom_reward_function.path": "/a.py", "reward.custom_reward_function.path": "/b.py"}
    notes = {note.key: note.text for note in convert(table, both, options_of(case)).notes}
    text = "reward.custom_reward_function.path = /b.py is the same setting, and counts"
    assert notes["custom_reward_function.path = /a.py"] == text


def test_every_table_names_the_version_that_it_was_read_from() -> None:
    page = tables()
    for title, table in TABLES.items():
        assert re.fullmatch(r"[\w-]+ [0-9a-f]{8,} of [\w -]+", table.read_from)
        assert f"## {title}\n\nAs of {table.read_from}.\n" in page
