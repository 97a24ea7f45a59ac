"""A local copy of a set: which of its files hold rows, and of which split."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from rljob_trainer.data.files import READERS, Place
from rljob_trainer.failure import ConfigurationError

FIELD = "--from"
SPLITS: dict[str, Literal["train", "heldout"]] = {"train": "train", "test": "heldout"}
DESCRIPTIONS = re.compile(r"dataset_infos?\.json|dataset_dict\.json|state\.json")
"""What the library `datasets` writes in addition to the rows."""


def data_files(copies: Iterable[Path]) -> Iterator[tuple[Place, Path]]:
    """Every file of rows, in the order of `copies` and then of their names, each with its path inside the copy.

    Hidden files and directories, descriptions and files of other formats are passed over in a directory.
    Raises ConfigurationError for a path that does not exist, and for a directory without a file of rows.
    """
    for copy in copies:
        if copy.is_file():
            yield Place(FIELD, str(copy)), Path(copy.name)
            continue
        inside = [path.relative_to(copy) for path in sorted(copy.rglob("*")) if path.is_file()]
        found = [path for path in inside if _holds_rows(path)]
        if not found:
            rule = f"holds no file that ends in {', '.join(READERS)}" if copy.is_dir() else "does not exist"
            raise ConfigurationError(FIELD, copy, rule, "name the set's directory or one of its files")
        yield from ((Place(FIELD, str(copy / path)), path) for path in found)


def split_of(place: Place, inside: Path) -> Literal["train", "heldout"]:
    """As a word of the file's path says, the last one if it has several. Raises ConfigurationError when none does."""
    words = re.findall(r"[a-z]+", str(inside).lower())
    named = [SPLITS[word] for word in words if word in SPLITS]
    if not named:
        raise place.error("its name says neither train nor test", "name files of these splits only, or rename it")
    return named[-1]


def _holds_rows(inside: Path) -> bool:
    hidden = any(part.startswith(".") for part in inside.parts)
    return inside.suffix in READERS and not hidden and not DESCRIPTIONS.fullmatch(inside.name)
