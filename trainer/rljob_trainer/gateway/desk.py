"""The ranks' side of the gateway: which piece of work they get next, and what becomes of its result. One piece is under way at a time."""

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_trainer.gateway.books import Book
from rljob_trainer.gateway.fair import Turns
from rljob_trainer.gateway.tally import ServiceTally
from rljob_trainer.wire.service import (
    DropModel,
    Failure,
    LoadState,
    Result,
    SaveForSampler,
    SaveState,
    Work,
    decode_result,
    decode_work,
    encode,
)

UNCOVERED = 256 * 2**20
"""Bytes of requests that no checkpoint covers, with which the next one does not wait for its time."""
STATES, SNAPSHOTS, CHECKPOINTS = "states", "snapshots", "checkpoints"

log = logging.getLogger(__name__)

Finish = Callable[[Result | Failure, bytes], Awaitable[None]]
"""What to do with a result, given as message and body."""


@dataclass(frozen=True)
class Piece:
    """What the ranks are doing."""

    ticket: str
    model: str
    work: bytes
    finish: Finish


@dataclass(frozen=True)
class ServiceFiles:
    """Where things are on the volume."""

    root: Path

    @property
    def journals(self) -> Path:
        return self.root / "models"

    def journal(self, model: str) -> Path:
        return self.journals / f"{plain(model)}.log"

    def new(self, model: str, seq: int, kind: str) -> str:
        """A directory that nothing has been written to: after a crash a request may be executed again."""
        return str(self.root / kind / plain(model) / f"{seq}-{secrets.token_hex(4)}")


def plain(model: str) -> str:
    """A model's name as the name of a file."""
    return model.replace(":", "-")


class Desk:
    """Pieces of work, for the ranks of one attempt after the other."""

    def __init__(
        self,
        files: ServiceFiles,
        checkpoint_seconds: float,
        books: Callable[[], Iterable[Book]],
        find: Callable[[str, str], str],
        saved: Callable[[Book, int, str], Awaitable[None]],
    ) -> None:
        """
        Args:
            books: all models
            find: the directory of a state, by a model of the client and its name for the state; empty: there is none
            saved: called when a request has written a directory for a client, before the client hears of it
        """
        self._files, self._seconds, self._books, self._find, self._saved = files, checkpoint_seconds, books, find, saved
        self._turns, self._changed, self._deciding = Turns(), asyncio.Event(), asyncio.Lock()
        self._pending: Piece | None = None
        self._life = ""
        self._dropped: list[str] = []
        self.tally = ServiceTally()
        self.mismatches = 0
        """Repetitions with another result than the first time."""

    def changed(self) -> None:
        """There may be something to do."""
        self._changed.set()

    def drop(self, model: str) -> None:
        """Have the ranks forget a model."""
        self._turns.forget(model)
        self._dropped.append(model)
        self.changed()

    async def next(self, life: str, draining: bool, seconds: float) -> Piece | None:
        """The next piece of work for the ranks of a driver. None: there is none within `seconds`.

        Args:
            life: names the driver, whose ranks have what they were given since it began
            draining: only checkpoints are wanted
        """
        async with self._deciding:
            if life != self._life:
                self._begin(life)
            piece = await self._offer(draining)
        if piece or draining:
            return piece
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return None
        async with self._deciding:
            return await self._offer(draining) if life == self._life else None

    async def done(self, ticket: str, body: bytes) -> None:
        """The ranks have done a piece. A ticket of another epoch is ignored: what it was about is repeated. Raises ValueError; and OSError, after
        which the same result can come again."""
        async with self._deciding:
            piece = self._pending
            if piece and piece.ticket == ticket:
                await piece.finish(decode_result(body), body)
                self._pending = None

    def _begin(self, life: str) -> None:
        """Ranks that are new, or that a former gateway has given work, of which nobody knows how far they are."""
        self._life, self._pending = life, None
        self.tally.begin()
        for book in self._books():
            book.line.restart()

    async def _offer(self, draining: bool) -> Piece | None:
        self._changed.clear()
        if self._pending is None:  # else the answer that had it was lost
            self._pending = await self._choose(draining)
        return self._pending

    async def _choose(self, draining: bool) -> Piece | None:
        if self._dropped:
            model = self._dropped.pop(0)
            return self._piece(model, DropModel(model=model, seq=0), self._ignore)
        ready = {book.line.model: piece for book in self._books() if (piece := await self._of(book, draining))}
        chosen = self._turns.choose(ready)
        return ready[chosen] if chosen is not None else None

    async def _of(self, book: Book, draining: bool) -> Piece | None:
        """The next piece of a model."""
        line = book.line
        if line.failed:
            return None
        if line.place is None:
            return None if draining else self._making(book)
        if self._checkpoint_due(book, draining):
            return self._checkpoint(book)
        while not draining and (seq := line.due()) is not None:
            if piece := await self._running(book, seq):
                return piece
        return None

    def _making(self, book: Book) -> Piece:
        line = book.line
        steps = list(self._steps(book))

        async def finish(result: Result | Failure, body: bytes) -> None:
            if isinstance(result, Failure) and line.built:
                await book.fail(result)
                return
            if line.built + 1 == len(steps):
                if line.entries.get(0) and line.entries[0].result is None:
                    await book.answer(0, body)
                    self.tally.trained(0)
                line.made()
            line.built += 1

        return self._piece(line.model, steps[line.built], finish)

    def _steps(self, book: Book) -> Iterator[Work]:
        """How the ranks get a model. They may have it, from before this gateway was started."""
        line = book.line
        yield DropModel(model=line.model, seq=0)
        yield decode_work(line.creation)
        if directory := line.checkpoint or line.start:
            yield LoadState(model=line.model, seq=0, path=directory, optimizer=bool(line.checkpoint) or line.optimizer)

    async def _running(self, book: Book, seq: int) -> Piece | None:
        """A request of a client. None: it needed no ranks."""
        entry, model, directory = book.line.entries[seq], book.line.model, ""
        work: Work | Failure | None = None
        if entry.kind in ("SaveState", "SaveForSampler", "LoadState", "Failure"):
            work = _read(entry.body)
        if isinstance(work, SaveState | SaveForSampler):
            kind = STATES if isinstance(work, SaveState) else SNAPSHOTS
            work = replace(work, path=(directory := self._files.new(model, seq, kind)))
        if isinstance(work, LoadState):
            work = await self._loading(book, work)

        async def finish(result: Result | Failure, body: bytes) -> None:
            if entry.result is None:
                if directory and isinstance(result, Result):
                    await self._saved(book, seq, directory)
                await book.answer(seq, body)
                self.tally.trained(entry.tokens)
            else:
                self._compare(model, seq, entry.result, body)
            book.line.executed(seq)  # last: after an error before this, the same result comes again
            self._turns.spend(model, entry.tokens)

        if isinstance(work, Failure):
            await finish(work, encode(work))
            return None
        return Piece(secrets.token_hex(8), model, encode(work) if work else entry.body, finish)

    async def _loading(self, book: Book, work: LoadState) -> LoadState | Failure:
        """The directory is found once: a repetition loads, or fails to find, what the first execution did."""
        entry = book.line.entries[work.seq]
        if entry.result is None and not entry.found and (found := self._find(work.model, work.path)):
            await book.load(work.seq, found)
        return replace(work, path=entry.found) if entry.found else Failure(message=f"there is no {work.path}")

    def _checkpoint(self, book: Book) -> Piece:
        line, seq = book.line, book.line.place
        assert seq is not None, "it is in the ranks"
        directory = self._files.new(line.model, seq, CHECKPOINTS)

        async def finish(result: Result | Failure, _: bytes) -> None:
            book.saved_at = time.monotonic()
            if isinstance(result, Failure):
                log.warning("no checkpoint of %s: %s", line.model, result.message)
                return
            if unneeded := await book.checkpointed(seq, directory):
                await asyncio.to_thread(remove, unneeded)

        return self._piece(line.model, SaveState(model=line.model, seq=seq, path=directory), finish)

    def _checkpoint_due(self, book: Book, draining: bool) -> bool:
        waited = time.monotonic() - book.saved_at >= self._seconds
        return (draining or waited or book.line.uncovered >= UNCOVERED) and book.line.at_step()

    def _compare(self, model: str, seq: int, before: bytes, now: bytes) -> None:
        if before != now:
            self.mismatches += 1
            log.warning("request %d of %s has another result now that it was repeated", seq, model)

    async def _ignore(self, result: Result | Failure, body: bytes) -> None:
        """What a model that is dropped says."""

    def _piece(self, model: str, work: Work, finish: Finish) -> Piece:
        return Piece(secrets.token_hex(8), model, encode(work), finish)


def _read(body: bytes) -> Work | Failure:
    try:
        return decode_work(body)
    except ValueError:  # what the client got wrong, in place of work
        failure = decode_result(body)
        assert isinstance(failure, Failure), "an entry is one of the two"
        return failure


def remove(directory: str) -> None:
    """Delete a directory that nobody reads any more."""
    shutil.rmtree(directory, ignore_errors=True)
