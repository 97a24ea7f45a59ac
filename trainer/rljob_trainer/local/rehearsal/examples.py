"""Supervised tasks in rehearsal: sequences with what is learnt of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.encoding import document
from rljob_trainer.data.examples import Example
from rljob_trainer.data.files import places
from rljob_trainer.data.loading import REASONS, load_examples
from rljob_trainer.data.packed_documents import is_indexed, texts
from rljob_trainer.data.tables import open_table
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer
from rljob_trainer.local.rehearsal.screen import Screen, extent, indented


@dataclass(frozen=True, slots=True)
class SupervisedRows:
    """Of the data of one task."""

    spec: RLJobSpec
    tokenizer: Tokenizer
    screen: Screen
    scratch: Path
    shown: int
    """Rows of each split."""

    def lines(self) -> Iterator[str]:
        """Of training, then held-out data. Raises ConfigurationError."""
        for split in ("train", "validation"):
            if files := getattr(self.spec.data, split):
                yield f"spec.data.{split} = {', '.join(files)}"
                yield from self._documents(split) if self.spec.task == "pretrain" else self._examples(split)

    def _examples(self, split: str) -> Iterator[str]:
        data = load_examples(self.spec, split, self.tokenizer, self.scratch / split, None)
        yield f"  {len(data)} rows"
        for index in range(min(self.shown, len(data))):
            yield from self._example(data[index])

    def _example(self, example: Example) -> Iterator[str]:
        if example.left_out:
            yield f"  row {example.index + 1} is left out: {REASONS[example.left_out]}"
        names = ("chosen: ", "rejected: ") if len(example.variants) == 2 else ("",)
        for name, variant in zip(names, example.variants, strict=False):
            total = sum(len(s.tokens) for s in variant)
            learnt = sum(len(s.tokens) for s in variant if s.source == "demonstration")
            cut = ", cut behind a turn to fit into spec.data.maxTokens" if example.cut else ""
            yield f"  row {example.index + 1}: {name}{total} tokens, {learnt} of them learnt{cut}"
            yield indented(self.screen.segments(variant, self.tokenizer))

    def _documents(self, split: str) -> Iterator[str]:
        for place in places(f"spec.data.{split}", getattr(self.spec.data, split)):
            if is_indexed(place, self.spec):
                yield f"  {place.path} holds tokens already: nothing is tried"
                continue
            table = open_table(place, self.scratch)
            first = list(islice(texts(place, table, self.spec.data.text_key), self.shown))
            lengths = [len(document(text, cast(OffsetTokenizer, self.tokenizer))) for text in first]
            yield f"  {place.path}: {len(table)} rows; the first have {extent(lengths)} tokens"
            yield from (indented(text[:500]) for text in first)
