"""A file of another system as it was read: its values, and which table holds for them."""

from dataclasses import dataclass, field
from typing import Any

import yaml

from rljob_api.kubernetes_yaml import documents
from rljob_api.type_errors import path_of
from rljob_import.hydra import plain
from rljob_import.settings import System
from rljob_import.table import Note, Problem


class Unreadable(ValueError):
    """A file that is not of the form that was asked for; the text says why."""


@dataclass(frozen=True)
class Source:
    system: System
    values: dict[str, Any]
    """Leaves by dotted path."""
    notes: list[Note] = field(default_factory=list)
    """What reading left open."""


def document(text: str) -> Any:
    """A YAML document. Raises Unreadable."""
    try:
        return plain(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise Unreadable(f"is not YAML: {error}") from error
    except RecursionError as error:
        raise Unreadable("is nested too deeply, or an alias leads into itself") from error
    except ValueError as error:  # a date without such a month, a number of thousands of digits
        raise Unreadable(f"holds a value that cannot be read: {error}") from error


def repeated(text: str) -> list[Problem]:
    """Keys that a YAML text has twice, of which readers take the last one. A script has none."""
    try:
        found = [key for document in documents(text) for key in document.duplicates]
    except yaml.YAMLError:
        return []
    return [Problem(f"{path_of(key.location)} = {' and '.join(key.values)}", _repeated(*key.lines)) for key in found]


def _repeated(first: int, second: int) -> str:
    return f"stands twice, in lines {first} and {second}; keep one of them"


def tree_of(text: str) -> dict[str, Any]:
    """A YAML document of keys and values. Raises Unreadable."""
    tree = document(text)
    if not isinstance(tree, dict):
        raise Unreadable("is not a YAML mapping")
    return tree
