"""Supervised tasks in rehearsal: every row is read as in a job, and the first are shown, with what is learnt of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from rljob_api.spec import RLJobSpec
from rljob_trainer.custom_rows.making import RowMaker
from rljob_trainer.data.encoding import Encoder, RawRow, document
from rljob_trainer.data.examples import Example
from rljob_trainer.data.files import Place, places
from rljob_trainer.data.formats import LeftOut, Texts, conversation, pair
from rljob_trainer.data.loading import REASONS, RowExamples, RowFile, require_chats, row_files
from rljob_trainer.data.packed_documents import is_indexed, text_at
from rljob_trainer.data.tables import Table, open_table
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.local.rehearsal.findings import Findings, Screen, extent, indented
from rljob_trainer.local.rehearsal.notes import Watched

NAMED = 10
"""Rows of a file that are named for one reason; of further ones there is only the number."""


@dataclass(slots=True)
class RowsOfFile:
    """What becomes of the rows of one file."""

    errors: list[ConfigurationError] = field(default_factory=list)
    """Of the first rows that cannot be used."""
    unusable: int = 0
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Rows, as people count them, by reason."""
    unread: dict[str, bool] = field(default_factory=dict)
    """Columns of the rows, and whether none of them was read."""

    def read[T](self, rows: range, row: Callable[[int], T]) -> Iterator[T]:
        """Those that can be used."""
        for number in rows:
            try:
                yield row(number)
            except ConfigurationError as error:
                self.unusable += 1
                if len(self.errors) < NAMED:
                    self.errors.append(error)

    def leave_out(self, number: int, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(number)

    def watch(self, row: Watched) -> None:
        """After it was read."""
        for column in row:
            self.unread[column] = self.unread.get(column, True) and column not in row.read

    def lines(self) -> Iterator[str]:
        """What is left out, and what is not read."""
        for reason, rows in self.left_out.items():
            named = ", ".join(map(str, rows[:NAMED])) + (f" and {len(rows) - NAMED} more" if len(rows) > NAMED else "")
            yield f"  row {named} is left out: {reason}" if len(rows) == 1 else f"  rows {named} are left out: {reason}"
        unread = [column for column, is_unread in self.unread.items() if is_unread]
        if unread:
            yield f"  columns that are not read: {', '.join(unread)}"


@dataclass(frozen=True, slots=True)
class SupervisedRows:
    """Of the data of one task."""

    spec: RLJobSpec
    tokenizer: Tokenizer
    screen: Screen
    findings: Findings
    scratch: Path
    shown: int
    """Rows of each file."""
    most: int | None
    """Rows of each file that are read; None: all."""

    def lines(self) -> Iterator[str]:
        """Of training, then held-out data."""
        for split in ("train", "validation"):
            files = getattr(self.spec.data, split)
            if files:
                yield f"spec.data.{split} = {', '.join(files)}"
                try:
                    yield from self._documents(split) if self.spec.task == "pretrain" else self._examples(split)
                except ConfigurationError as error:
                    self.findings.refuse(error)

    def _examples(self, split: str) -> Iterator[str]:
        scratch = self.scratch / split
        scratch.mkdir()
        made = RowMaker(self.spec.data, self.scratch / f"custom-{split}", self.most)
        files, tokenizer = row_files(self.spec, split, scratch, made), cast(OffsetTokenizer, self.tokenizer)
        require_chats(self.spec, files, tokenizer)
        encoder, usable = Encoder(self.spec, tokenizer), True
        for file in files:
            rows_of_file = RowsOfFile()
            yield from self._file(file, encoder, rows_of_file)
            usable &= not rows_of_file.unusable
        if usable:
            RowExamples(self.spec, split, files, tokenizer, None)  # refuses what a job does, also of later rows

    def _file(self, file: RowFile, encoder: Encoder, rows_of_file: RowsOfFile) -> Iterator[str]:
        rows = self._rows(file.table)
        yield f"  {file.place.path}: {self._read(file.table)}"
        self._note_first(file)

        def encode(row: int) -> Example:
            record = Watched(file.record(row))
            example = encoder(RawRow(row, record, file.at(row), file.format))
            rows_of_file.watch(record)
            return example

        for example in rows_of_file.read(rows, encode):
            if example.left_out:
                rows_of_file.leave_out(file.table.number(example.index), REASONS[example.left_out])
            elif example.index < self.shown:
                yield from self._example(example, file.table.number(example.index))
        yield from rows_of_file.lines()
        self.findings.note(encoder.notes)
        self.findings.refuse_rows(rows_of_file.errors, rows_of_file.unusable)

    def _note_first(self, file: RowFile) -> None:
        """By the first row, if it can be used."""
        with suppress(ConfigurationError, LeftOut):
            record, place, data = file.record(0), file.at(0), self.spec.data
            read = (pair if self.spec.paired else conversation)(record, place, data, file.format)
            self.findings.note_row(record, place.path, isinstance(read[0] if isinstance(read, tuple) else read, Texts))

    def _rows(self, table: Table) -> range:
        return range(len(table) if self.most is None else min(self.most, len(table)))

    def _read(self, table: Table) -> str:
        rows = len(self._rows(table))
        return f"{rows} rows" if rows == len(table) else f"first {rows} of {len(table)} rows"

    def _example(self, example: Example, number: int) -> Iterator[str]:
        names = ("chosen: ", "rejected: ") if len(example.variants) == 2 else ("",)
        for name, variant in zip(names, example.variants, strict=False):
            total = sum(len(s.tokens) for s in variant)
            learnt = sum(len(s.tokens) for s in variant if s.source == "demonstration")
            cut = ", cut behind a turn to fit into spec.data.maxTokens" if example.cut else ""
            yield f"  row {number}: {name}{total} tokens, {learnt} of them learnt{cut}"
            yield indented(self.screen.segments(variant, self.tokenizer))

    def _documents(self, split: str) -> Iterator[str]:
        scratch = self.scratch / split
        scratch.mkdir()
        for place in places(f"spec.data.{split}", getattr(self.spec.data, split)):
            if is_indexed(place, self.spec):
                yield f"  {place.path} holds tokens already: nothing is tried"
                continue
            yield from self._texts(place, open_table(place, scratch))

    def _texts(self, place: Place, table: Table) -> Iterator[str]:
        key, rows_of_file = self.spec.data.text_key, RowsOfFile()
        first = list[tuple[int, str, Sequence[int]]]()

        def read(row: int) -> tuple[int, str]:
            return row, text_at(place, table, row, key)

        for row, text in rows_of_file.read(self._rows(table), read):
            if not text:
                rows_of_file.leave_out(table.number(row), "there is no text")
            elif row < self.shown:
                first.append((table.number(row), text, document(text, cast(OffsetTokenizer, self.tokenizer))))
        self.findings.require_read(place.path, first)
        lengths = [len(tokens) for _, _, tokens in first]
        yield f"  {place.path}: {self._read(table)}" + (f"; the first have {extent(lengths)} tokens" if first else "")
        yield from (indented(text[:500]) for _, text, _ in first)
        yield from rows_of_file.lines()
        self.findings.refuse_rows(rows_of_file.errors, rows_of_file.unusable)
