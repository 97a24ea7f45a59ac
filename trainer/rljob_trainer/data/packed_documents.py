"""Examples of `pretrain`: documents one behind another, cut into sequences of maxTokens without padding.

A piece of a document is a variant of its own, so that no document attends to another and positions begin anew. Every token but a document's first is
predicted exactly once: a piece that the sequence's end cuts off brings the token behind it, as a target.
"""

import asyncio
import hashlib
import logging
import subprocess
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import DataSpec
from rljob_trainer.data.encoding import EncodingWorkers, document, require
from rljob_trainer.data.examples import Example, ExampleSet
from rljob_trainer.data.files import Place, short
from rljob_trainer.data.formats import column
from rljob_trainer.data.tables import Table, open_table
from rljob_trainer.data.tokenizer import OffsetTokenizer, Vocabulary
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.processes import tied
from rljob_trainer.wire.trajectory import Ints, Segment

log = logging.getLogger(__name__)
PROBES = 64
"""Stretches of a file that the digest is made of."""


@dataclass(frozen=True, slots=True)
class Documents:
    """The tokens of one file, mapped."""

    place: Place
    tokens: npt.NDArray[np.integer]
    """[T]"""
    starts: npt.NDArray[np.int64]
    """[documents + 1], ascending, from 0 to T."""

    def pieces(self, first: int, last: int) -> Iterator[Ints]:
        """The documents' parts in tokens [first, last), each with the token behind it if its document continues there."""
        inner = self.starts[np.searchsorted(self.starts, first, "right") : np.searchsorted(self.starts, last, "left")]
        for a, b in pairwise([first, *inner.tolist(), last]):
            ends = b == len(self.tokens) or self.starts[np.searchsorted(self.starts, b)] == b
            yield np.asarray(self.tokens[a : b + (not ends)], np.int32)


class PackedDocuments(ExampleSet):
    """Sequences of maxTokens, of which the last one of every file may be shorter."""

    def __init__(self, files: Sequence[Documents], data: DataSpec, split: str):
        self._length = data.max_tokens
        sizes = [-(-len(f.tokens) // self._length) for f in files]
        super().__init__(sizes, data, split)
        self._files, self._starts = files, [0, *accumulate(sizes)]
        self.digest = _digest(files, self._length)

    def _example(self, index: int) -> Example:
        number = bisect_right(self._starts, index) - 1
        file, first = self._files[number], (index - self._starts[number]) * self._length
        pieces = file.pieces(first, min(first + self._length, len(file.tokens)))
        variants = tuple((Segment(p[:1], "prompt"), Segment(p[1:], "demonstration")) for p in pieces if len(p) > 1)
        return Example(index, variants, file.place.path, None if variants else "empty")

    async def _examples(self, indices: Sequence[int]) -> list[Example]:
        return await asyncio.to_thread(self._read, indices)

    def _read(self, indices: Sequence[int]) -> list[Example]:
        return [self[i] for i in indices]


def load_documents(
    place: Place, spec: RLJobSpec, tokenizer: OffsetTokenizer, scratch: Path, workers: EncodingWorkers | None
) -> Documents:
    """Of one file or indexed data set. Raises ConfigurationError."""
    target = scratch / f"documents-{len(list(scratch.iterdir()))}"
    documents = (
        _indexed(place, target)
        if is_indexed(place, spec)
        else _tokenised(place, spec, tokenizer, scratch, target, workers)
    )
    known, largest = len(tokenizer), max(int(documents.tokens[a:b].max()) for a, b in _stretches(documents))
    if largest >= known:
        rule = f"holds the token id {largest}, and the tokenizer in spec.model.path has {known} tokens"
        raise place.error(rule, "make the data set again with the model's own tokenizer")
    vocabulary = Vocabulary.of(spec)
    if vocabulary:
        vocabulary.require([largest], place, tokenizer)
    log.info("%s: %d documents, %d tokens", place.path, len(documents.starts) - 1, len(documents.tokens))
    return documents


def is_indexed(place: Place, spec: RLJobSpec) -> bool:
    """It is one of Megatron's indexed data sets, not a file of texts."""
    return spec.data.format == "indexed" or (spec.data.format == "auto" and Path(f"{place.path}.idx").is_file())


def _indexed(place: Place, target: Path) -> Documents:
    """Megatron's own reader needs torch, which the driver does not have: a process of its own reads the index, and says where documents start."""
    for suffix in (".idx", ".bin"):
        if not Path(place.path + suffix).is_file():
            fix = "name the data set without .idx and .bin, or mount the volume that holds both in spec.volumes"
            raise place.error(f"there is no {place.path}{suffix} in the trainer pod", fix)
    starts = target.with_suffix(".npy")
    done = subprocess.run(
        tied("rljob_trainer.megatron.indexed", place.path, str(starts)), capture_output=True, text=True
    )
    if done.returncode:
        why = ((done.stdout + done.stderr).strip().splitlines() or ["no message"])[0]
        raise place.error(f"Megatron cannot read it: {why}", "write it again with Megatron's tools/preprocess_data.py")
    dtype = np.dtype(done.stdout.split()[-1])
    return _filled(place, np.memmap(place.path + ".bin", dtype, "r"), np.load(starts, mmap_mode="r"))


def _tokenised(
    place: Place,
    spec: RLJobSpec,
    tokenizer: OffsetTokenizer,
    scratch: Path,
    target: Path,
    workers: EncodingWorkers | None,
) -> Documents:
    """All texts, tokenised into one file. Empty ones are no documents."""
    require(tokenizer, chats=False)
    table, starts, total = open_table(place, scratch), array("q", [0]), 0
    read = texts(place, table, spec.data.text_key)
    with target.open("wb") as sink:
        for tokens in workers.tokenise(read) if workers else (document(text, tokenizer) for text in read):
            if tokens:
                sink.write(np.array(tokens, np.int32).tobytes())
                total += len(tokens)
                starts.append(total)
    empty = len(table) - len(starts) + 1
    if empty:
        log.warning("%s: %d of %d rows hold no text and are left out", place.path, empty, len(table))
    return _filled(place, np.memmap(target, np.int32, "r") if total else np.zeros(0, np.int32), np.array(starts))


def _filled(place: Place, tokens: npt.NDArray[np.integer], starts: npt.NDArray[np.int64]) -> Documents:
    if len(tokens):
        return Documents(place, tokens, starts)
    raise place.error("holds no token", "leave the file out or fill it")


def texts(place: Place, table: Table, key: str) -> Iterator[str]:
    """Of the column `key`. Raises ConfigurationError for what is none."""
    return (text_at(place, table, row, key) for row in range(len(table)))


def text_at(place: Place, table: Table, row: int, key: str) -> str:
    """The text of a row, from 0; empty where it has none. Raises ConfigurationError for what is no text."""
    at = place.at(table.number(row))
    try:
        text = column(key, table[row], at)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise at.error(f"cannot be read: {error}", "write the row as one JSON object") from error
    if text is not None and not isinstance(text, str):
        raise at.error(f"column {key!r} holds {short(text)}, which is not a text", "write documents as texts")
    return _whole(text or "", at, key)


def _whole(text: str, at: Place, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        rule = f"column {key!r} holds half of a character, {error.object[error.start]!r}, which no tokenizer knows"
        raise at.error(rule, "repair the text, or leave the row out") from error
    return text


def _stretches(file: Documents) -> Iterator[tuple[int, int]]:
    """Of tokens, spread evenly."""
    for i in range(PROBES):
        start = i * max(0, len(file.tokens) - 1024) // (PROBES - 1)
        yield start, min(start + 1024, len(file.tokens))


def _digest(files: Sequence[Documents], length: int) -> int:
    digest = hashlib.sha256(f"{length}".encode())
    for file in files:
        digest.update(f"{len(file.tokens)}:{len(file.starts)}\0".encode())
        for a, b in _stretches(file):
            digest.update(file.tokens[a:b].astype("<i8").tobytes())
    return int.from_bytes(digest.digest()[:6])
