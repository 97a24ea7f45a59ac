"""The one entrance to the data of supervised tasks, and examples of one row each: conversations and pairs, read and tokenised when they are drawn."""

import asyncio
import hashlib
import json
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import cast

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.encoding import Encoder, EncodingWorkers, RawRow, require
from rljob_trainer.data.examples import Example, ExampleSet
from rljob_trainer.data.files import UTF8, MadeFiles, Place, Record, places
from rljob_trainer.data.formats import Reason, detect
from rljob_trainer.data.packed_documents import PackedDocuments, load_documents
from rljob_trainer.data.tables import Table, open_table
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer
from rljob_trainer.failure import ConfigurationError

log = logging.getLogger(__name__)
REASONS: dict[Reason, str] = {
    "too_long": "it is longer than spec.data.maxTokens",
    "no_assistant": "the assistant has no turn to learn from",
    "masked": "its messages are marked as not to be learnt",
    "empty": "its prompt or its answer is empty",
    "equal_pair": "the chosen and the rejected answer are the same",
}
PROBES = 64
"""Rows of a file, spread over it, that are looked at before training begins."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file, opened."""

    place: Place
    table: Table
    format: str

    @staticmethod
    def of(place: Place, table: Table, spec: RLJobSpec) -> "RowFile":
        """Raises ConfigurationError when the format of its rows cannot be recognised."""
        first = RowFile(place, table, spec.data.format)
        if spec.data.format != "auto":
            return first
        return RowFile(place, table, detect(first.record(0), first.at(0), spec.data, spec.paired))

    def record(self, row: int) -> Record:
        try:
            return self.table[row]
        except ValueError as error:
            fix = UTF8 if isinstance(error, UnicodeDecodeError) else "write the row as one JSON object"
            raise self.at(row).error(f"cannot be read: {error}", fix) from error

    def at(self, row: int) -> Place:
        return self.place.at(self.table.number(row))

    def probes(self) -> list[int]:
        """Rows spread evenly, the first and the last among them."""
        count = min(PROBES, len(self.table))
        return [i * (len(self.table) - 1) // max(1, count - 1) for i in range(count)]


class RowExamples(ExampleSet):
    """Of several files, counted one after another. Without workers rows are tokenised in this process."""

    def __init__(
        self,
        spec: RLJobSpec,
        split: str,
        files: Sequence[RowFile],
        tokenizer: OffsetTokenizer,
        workers: EncodingWorkers | None,
    ):
        super().__init__([len(f.table) for f in files], spec.data, split)
        self._files, self._workers = files, workers
        self._starts = [0, *accumulate(len(f.table) for f in files)]
        self._encoder = Encoder(spec, tokenizer)
        self.notes = self._encoder.notes
        self._named: set[Reason] = set()
        self.digest = _digest(files)
        require_chats(spec, files, tokenizer)
        self._probe(split)

    def _example(self, index: int) -> Example:
        return self._logged(self._encoder(self._row(index)))

    def _rows(self, indices: Sequence[int]) -> list[RawRow]:
        return [self._row(i) for i in indices]

    async def _examples(self, indices: Sequence[int]) -> list[Example]:
        if self._workers is None:
            return [self[i] for i in indices]
        rows = await asyncio.to_thread(self._rows, indices)
        return [self._logged(example) for example in await self._workers.encode(rows)]

    def close(self) -> None:
        if self._workers:
            self._workers.close()

    def _row(self, index: int) -> RawRow:
        number = bisect_right(self._starts, index) - 1
        file, row = self._files[number], index - self._starts[number]
        return RawRow(index, file.record(row), file.at(row), file.format)

    def _probe(self, split: str) -> None:
        """So that what is wrong with a file is said before any GPU works. Raises ConfigurationError."""
        starts = zip(self._files, self._starts, strict=False)
        probed = [self[start + row] for file, start in starts for row in file.probes()]
        if all(example.left_out for example in probed):
            reasons = ", ".join(sorted({str(example.left_out) for example in probed}))
            rule = f"nothing can be learnt from any of the {len(probed)} rows that were looked at ({reasons})"
            fix = "see docs/data-formats.md for what a row has to hold; for too_long raise spec.data.maxTokens"
            raise ConfigurationError(f"spec.data.{split}", f"{len(self)} rows", rule, fix)

    def _logged(self, example: Example) -> Example:
        """The first row of every kind that is left out is named in the log."""
        if example.left_out and example.left_out not in self._named:
            self._named.add(example.left_out)
            place = self._row(example.index).place
            log.warning("%s row %s is left out: %s", place.path, place.row, REASONS[example.left_out])
        return example


def require_chats(spec: RLJobSpec, files: Sequence[RowFile], tokenizer: OffsetTokenizer) -> None:
    """Raises ConfigurationError for a tokenizer that cannot write what these files hold."""
    require(tokenizer, chats=any(f.format != "columns" for f in files) or spec.data.chat_template.texts)


def _digest(files: Sequence[RowFile]) -> int:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.format}:{len(file.table)}\0".encode())
        for row in file.probes():
            digest.update(json.dumps(file.record(row), sort_keys=True, default=str).encode() + b"\0")
    return int.from_bytes(digest.digest()[:6])


def load_examples(
    spec: RLJobSpec,
    split: str,
    tokenizer: Tokenizer,
    scratch: Path,
    workers: EncodingWorkers | None,
    made: MadeFiles = list,
) -> ExampleSet:
    """The examples of spec.data.`split` (train or validation), for any task but rl.

    Args:
        tokenizer: that of spec.model.
        scratch: a directory, which may be missing, for what files without random access are converted to. It has to live as long as the set.
        workers: tokenise; None: this process does.
        made: gives the files with what spec.data.custom makes of their rows.

    Raises:
        ConfigurationError: a file cannot be read, the format of its rows cannot be recognised, or no row that was looked at teaches anything.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    offsets = cast(OffsetTokenizer, tokenizer)
    if spec.task == "pretrain":
        files = places(f"spec.data.{split}", getattr(spec.data, split))
        return PackedDocuments([load_documents(p, spec, offsets, scratch, workers) for p in files], spec.data, split)
    return RowExamples(spec, split, row_files(spec, split, scratch, made), offsets, workers)


def row_files(spec: RLJobSpec, split: str, scratch: Path, made: MadeFiles = list) -> list[RowFile]:
    """The files of spec.data.`split`, opened. `made`: as for load_examples. Raises ConfigurationError."""
    files = made(places(f"spec.data.{split}", getattr(spec.data, split)))
    return [RowFile.of(file, open_table(file, scratch), spec) for file in files]
