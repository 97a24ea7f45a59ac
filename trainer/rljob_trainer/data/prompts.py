"""Rows to prompts: token ids within the length limit, each with the index that names it for the whole run; and the held-out prompts, in sets with
names.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from sys import intern
from typing import overload

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import DataSpec
from rljob_api.spec.train import VALIDATION
from rljob_trainer.data.chat import encode_prompt, identity_of
from rljob_trainer.data.files import MadeFiles, Place, Record, places
from rljob_trainer.data.pictures import ImageReader, lifted
from rljob_trainer.data.rows import Row, answers_elsewhere, read_rows
from rljob_trainer.data.tables import FileRows
from rljob_trainer.data.tokenizer import Tokenizer, Vocabulary
from rljob_trainer.failure import ConfigurationError, RowProblem
from rljob_trainer.wire.images import Placed

RowValidator = Callable[[str, str], RowProblem | None]
"""Of data source and answer: why no reward can score such a row, or None."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, ready to be generated from and scored."""

    index: int
    """Row in the data set, counted over all its files and before the length filter."""
    tokens: tuple[int, ...]
    text: str
    """What the tokens stand for; of chat messages the conversation as the template writes it."""
    answer: str
    data_source: str
    row: Callable[[], Record] = field(default=dict, compare=False, repr=False)
    """Reads all columns of its row from the file; empty of a prompt that comes from none."""
    identity: str = field(default="", compare=False, repr=False)
    """For the fingerprint of the data: the same on every day, even where the template writes the date. Empty: its text."""
    images: Callable[[], tuple[Placed, ...]] | None = field(default=None, compare=False, repr=False)
    """Reads its images, with their places among the tokens. Raises ConfigurationError for a file that is not what it was. None: it is a text."""


@dataclass(slots=True)
class PromptCounts:
    """What became of the rows."""

    rows: int = 0
    too_long: int = 0
    """Left out because of spec.data.maxPromptTokens."""
    kept: dict[str, int] = field(default_factory=dict)
    """Prompts of each file, by the field of the spec that names it, in their order."""
    duplicates: int = 0
    """Kept, although an earlier row has the same prompt, answer and data source."""


class PromptSet(Sequence[Prompt]):
    """The prompts of one split that are short enough. Tokens lie in one array: four bytes each in place of an object."""

    def __init__(
        self,
        prompts: Iterable[Prompt],
        counts: PromptCounts | None = None,
        rows: FileRows | None = None,
        images: ImageReader | None = None,
    ):
        """`rows`: where the prompts come from, by their index; `images` reads those that they have."""
        self.counts, self._rows, self.reader = counts or PromptCounts(), rows, images
        self._tokens, self._ends, self._indices = array("i"), array("q", [0]), array("q")
        self._texts: list[tuple[str, str, str]] = []
        digest = hashlib.sha256()
        for p in prompts:
            self._tokens.extend(p.tokens)
            self._ends.append(len(self._tokens))
            self._indices.append(p.index)
            self._texts.append((p.text, intern(p.answer), intern(p.data_source)))
            digest.update(f"{p.index}:{p.identity or p.text}\0".encode(errors="surrogatepass"))
        self.digest = int.from_bytes(digest.digest()[:6])
        """Of all indices and identities: equal for equal data."""

    @property
    def unanswered(self) -> set[str]:
        """Data sources none of whose prompts has an answer."""
        sources = {(source, bool(answer)) for _, answer, source in self._texts}
        return {source for source, _ in sources if (source, True) not in sources}

    @property
    def sizes(self) -> Sequence[int]:
        """Prompts of each file."""
        return tuple(self.counts.kept.values())

    def source(self, place: int) -> str:
        """Data source of a prompt."""
        return self._texts[place][2]

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...
    @overload
    def __getitem__(self, place: slice) -> list[Prompt]: ...
    def __getitem__(self, place: int | slice) -> Prompt | list[Prompt]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        tokens = tuple(self._tokens[self._ends[place] : self._ends[place + 1]])
        index = self._indices[place]
        row = partial(self._rows.__getitem__, index) if self._rows else dict
        images = partial(_images, self.reader, self._rows, index, tokens) if self.reader and self._rows else None
        return Prompt(index, tokens, *self._texts[place], row, images=images)


def _images(reader: ImageReader, rows: FileRows, index: int, tokens: tuple[int, ...]) -> tuple[Placed, ...]:
    place = rows.place(index)
    sources = lifted(rows[index], reader.key, place)[1]
    return reader.placed(np.array(tokens), [reader.read(source, place) for source in sources])


def load_prompts(
    spec: DataSpec,
    files: Sequence[Place],
    tokenizer: Tokenizer,
    validate_row: RowValidator,
    scratch: Path,
    images: ImageReader | None = None,
    vocabulary: Vocabulary | None = None,
    most: int | None = None,
) -> PromptSet:
    """The prompts of the files. `scratch` is as for FileRows, and has to live as long as the prompts. `images`: None where spec.imageKey is unset.
    `vocabulary`: None where nobody knows. `most`: read only the first rows; None: all.

    Raises ConfigurationError for rows that cannot be used or scored, and when none is short enough.
    """
    counts = PromptCounts(kept={file.field: 0 for file in files})
    rows = FileRows(files, scratch)
    fitting = _fitting(spec, islice(read_rows(spec, files), most), tokenizer, validate_row, counts, images, vocabulary)
    prompts = PromptSet(fitting, counts, rows, images)
    if counts.rows and not prompts:
        rule = f"all {counts.rows} prompts of {files[0].field.rpartition('[')[0]} are longer"
        raise ConfigurationError(
            "spec.data.maxPromptTokens", str(spec.max_prompt_tokens), rule, "raise the limit or shorten the prompts"
        )
    return prompts


def require_prompts_of_every_file(spec: DataSpec, prompts: PromptSet) -> None:
    """Raises ConfigurationError when a file is to be drawn from by spec.data.weights and none of its prompts is short enough."""
    for file, count in prompts.counts.kept.items() if spec.weights else ():
        if not count:
            rule = f"{file} has a share, and all its prompts are longer than spec.data.maxPromptTokens"
            fix = "raise the limit, or leave out the file and its weight"
            raise ConfigurationError("spec.data.weights", str(spec.weights), rule, fix)


def _fitting(
    spec: DataSpec,
    rows: Iterable[Row],
    tokenizer: Tokenizer,
    validate_row: RowValidator,
    counts: PromptCounts,
    images: ImageReader | None,
    vocabulary: Vocabulary | None,
) -> Iterator[Prompt]:
    seen: set[int] = set()
    for index, row in enumerate(rows):
        problem = validate_row(row.data_source, row.answer)
        if problem:
            raise row.place.error(*_located(problem, row))
        text, tokens = encode_prompt(row, spec, tokenizer)
        if vocabulary:
            vocabulary.require(tokens, row.place, tokenizer)
        if images:
            tokens = images.prompt(tokens, row.images, row.place)
        counts.rows += 1
        if len(tokens) > spec.max_prompt_tokens:
            counts.too_long += 1
            continue
        counts.kept[row.place.field] += 1
        mark = hash((text, row.answer, row.data_source, index if row.images else None))
        counts.duplicates += mark in seen
        seen.add(mark)
        yield Prompt(
            index, tuple(tokens), text, row.answer, row.data_source, identity=identity_of(row, spec, tokenizer)
        )


def _located(problem: RowProblem, row: Row) -> tuple[str, str]:
    """Rule and fix, with what to set where the answer is missing."""
    if row.answer or not problem.needs_answer:
        return problem.rule, problem.fix
    return problem.rule, f"{answers_elsewhere(row.place, 'set spec.data.answerKey')}; or correct the row"


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """Prompts, and how they are answered."""

    name: str
    prompts: PromptSet
    count: int
    """Responses per prompt."""
    sampling: Sampling


def load_held_out(
    spec: RLJobSpec,
    tokenizer: Tokenizer,
    validate_row: RowValidator,
    scratch: Path,
    images: ImageReader | None = None,
    made: MadeFiles = list,
) -> list[HeldOutSet]:
    """Of spec.data.validation and spec.evaluation.sets, of which `made` gives the files with what spec.data.custom makes of their rows. The other
    arguments, and what is raised, are those of load_prompts."""
    sets, vocabulary = [], Vocabulary.of(spec)
    for i, (s, files) in enumerate(zip(spec.evaluation_sets, _files(spec), strict=True)):
        prompts = load_prompts(spec.data, made(files), tokenizer, validate_row, scratch / str(i), images, vocabulary)
        sets.append(HeldOutSet(s.name, prompts, s.samples_per_prompt or 1, s.sampling or spec.evaluation.sampling))
    return sets


def _files(spec: RLJobSpec) -> list[list[Place]]:
    """Of every set, in their order."""
    validation = spec.data.validation
    own = [places(f"spec.evaluation.sets[{i}].files", s.files) for i, s in enumerate(spec.evaluation.sets)]
    return [*([places(f"spec.data.{VALIDATION}", validation)] if validation else []), *own]
