"""Columns of a record, by name or by a dotted path into a nested one."""

from collections.abc import Mapping
from typing import Any

from rljob_trainer.data.files import Record

ABSENT = object()
"""In place of a value: there is no such column."""


def find(key: str, record: Record) -> Any:
    """The column of that name, else the value that the dotted path leads to; null when it leads into one."""
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return ABSENT
        value = value[part]
    return value


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
