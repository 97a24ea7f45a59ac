"""`python -m rljob_trainer data SET`: reads the copy, decides what is held out, writes the files and says how many rows they have."""

import argparse
import random
import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rljob_trainer.conversion.sets import SETS, Problem, WellKnownSet, split_problems, write_problems
from rljob_trainer.data.files import READERS, Place, read_records
from rljob_trainer.failure import ConfigurationError

FIELD = "--from"
SPLITS: dict[str, Literal["train", "heldout"]] = {"train": "train", "validation": "heldout", "test": "heldout"}
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
        files = [path for path in inside if _holds_rows(path)]
        if not files:
            rule = f"holds no file that ends in {', '.join(READERS)}" if copy.is_dir() else "does not exist"
            raise ConfigurationError(FIELD, copy, rule, "name the set's directory or one of its files")
        yield from ((Place(FIELD, str(copy / path)), path) for path in files)


def split_of(place: Place, inside: Path) -> Literal["train", "heldout"]:
    """As a word of the file's path says, the last one if it has several. Raises ConfigurationError when none does."""
    words = re.findall(r"[a-z]+", str(inside).lower())
    named = [SPLITS[word] for word in words if word in SPLITS]
    if not named:
        raise place.error(
            "its name says neither train nor validation nor test", "name files of these splits only, or rename it"
        )
    return named[-1]


def _holds_rows(inside: Path) -> bool:
    hidden = any(part.startswith(".") for part in inside.parts)
    return inside.suffix in READERS and not hidden and not DESCRIPTIONS.fullmatch(inside.name)


@dataclass(slots=True)
class Converted:
    """The rows of a set. No prompt is there twice with the same pictures, in one split or in both."""

    train: list[Problem] = field(default_factory=list)
    heldout: list[Problem] = field(default_factory=list)
    repeated: int = 0
    """Rows that were left out because their prompt had come before."""


def convert(options: argparse.Namespace) -> int:
    """The exit code: 0 when the files are written; 1 with the cause in one message, and no file changed, when the copy cannot be used."""
    try:
        write(_converted(options), options.out)
    except (ConfigurationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _converted(options: argparse.Namespace) -> Converted:
    if options.set == "arithmetic":
        return Converted(*split_problems(options.seed))
    converted = read_copy(SETS[options.set], options.copy)
    if "held_out" in options:
        hold_out(converted, options.held_out, options.seed)
    return converted


def read_copy(known: WellKnownSet, copies: Iterable[Path]) -> Converted:
    """All problems of the copy. Held-out rows are read first, so that a prompt of theirs leaves the training rows.

    Raises ConfigurationError, naming file and row, for whatever is not of this set.
    """
    files: dict[str, list[Place]] = {"heldout": [], "train": []}
    for place, inside in data_files(copies):
        files[split_of(place, inside) if known.splits == "by name" else known.splits].append(place)
    converted, seen = Converted(), set[Hashable]()
    for split, places in files.items():
        for problem in _problems(known, places):
            key = repr(problem.prompt), problem.images
            converted.repeated += key in seen
            if key not in seen:
                seen.add(key)
                getattr(converted, split).append(problem)
    return converted


def hold_out(converted: Converted, count: int, seed: int) -> None:
    """Move `count` training problems, drawn by the seed, to the held-out ones; both keep the order of the files."""
    if not 0 <= count < len(converted.train):
        rule = f"the copy has {len(converted.train)} different prompts, of which some must be left to train on"
        raise ConfigurationError("--held-out", count, rule, f"give a number from 0 to {len(converted.train) - 1}")
    drawn = set(random.Random(seed).sample(range(len(converted.train)), count))
    converted.heldout = [problem for i, problem in enumerate(converted.train) if i in drawn]
    converted.train = [problem for i, problem in enumerate(converted.train) if i not in drawn]


def write(converted: Converted, out: Path) -> None:
    """A file for each split that has rows, and a line for each file."""
    for split in ("train", "heldout"):
        problems = getattr(converted, split)
        if problems:
            write_problems(problems, out / f"{split}.parquet")
            print(f"{out / f'{split}.parquet'}: {len(problems)} rows")
    if converted.repeated:
        print(f"left out: {converted.repeated} rows that repeat a prompt")


def _problems(known: WellKnownSet, files: Iterable[Place]) -> Iterator[Problem]:
    for file in files:
        for place, record in read_records(file, known.keys):
            yield known.convert(record, place)
