"""A model's line with its journal, and the requests that wait for its results; and what those who have books ask of each other."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rljob_trainer.gateway.journal import Journal, JournalRecord
from rljob_trainer.gateway.line import Asked, Novelty, RequestLine
from rljob_trainer.gateway.listening import ListeningClock
from rljob_trainer.wire.gateway import encode
from rljob_trainer.wire.service import WorkFailure

MOST_ANSWERS = 64 * 2**20
"""Bytes of results of a model, beyond which old ones are dropped: they have been fetched, or nobody fetches them."""


class Book:
    """One model. What changes it is on the disk before it counts."""

    def __init__(self, line: RequestLine, journal: Journal, clock: ListeningClock) -> None:
        self.line, self._clock = line, clock
        self._journal: Journal | None = journal
        """None once the model is gone."""
        self._writing = asyncio.Lock()
        self._answered = dict[int, asyncio.Event]()
        """By request: whoever waits for its result. A model has thousands, so that each result wakes those alone."""
        self.saved_at = time.monotonic()
        """When the ranks were last done with a checkpoint of it."""
        self.not_before = self.pause = 0.0
        """Until when the ranks are not given it, by the monotonic clock, and for how long: they could not be given it before."""
        self.gone = False
        """Whether its session has ended, say: what the ranks still do for it does not count."""
        self.failure_fetched = False
        """Whether a client may have heard why the model has failed."""

    @staticmethod
    async def create(
        path: Path,
        line: RequestLine,
        first: Asked,
        check: Callable[[], None],
        clock: ListeningClock,
        why: WorkFailure | None = None,
    ) -> "Book":
        """A new model, whose creation is request 0. `check`: see Journal; `why`: it is refused, and all of its requests fail with that."""
        journal = await asyncio.to_thread(Journal, path, check)
        refusal = [_failed(encode(why))] if why else []
        await asyncio.to_thread(journal.append, _created(line), _asked(0, first), *refusal)
        line.accept(0, first)
        if why:
            line.fail(encode(why))
        return Book(line, journal, clock)

    @staticmethod
    def restore(path: Path, check: Callable[[], None], clock: ListeningClock) -> "Book | None":
        """The model of a journal; None: a crash left nothing of its creation. `check`: see Journal."""
        journal = Journal(path, check)
        if not journal.records:
            journal.remove()
            return None
        line = _line(journal.records)
        line.presume_fetched(clock.seconds)
        journal.records.clear()
        book = Book(line, journal, clock)
        book.failure_fetched = line.failed is not None  # nobody knows
        return book

    async def ask(self, seq: int, entry: Asked) -> Novelty:
        """A client's request; `new` once it is on the disk. A model that has failed keeps none: its failure is their result."""
        async with self._writing:
            arrival = self.line.arrival(seq, entry)
            if arrival == "new" and not self.line.failed:
                if self._journal:
                    await asyncio.to_thread(self._journal.append, _asked(seq, entry))
                self.line.accept(seq, entry)
            return arrival

    async def load(self, seq: int, directory: str) -> None:
        """A request loads this directory, whenever it is executed."""
        async with self._writing:
            if self._journal:
                await asyncio.to_thread(self._journal.append, _found(seq, directory))
            self.line.entries[seq].found = directory

    async def answer(self, seq: int, result: bytes) -> None:
        async with self._writing:
            if self._journal:
                await asyncio.to_thread(self._journal.append, JournalRecord({"kind": "answered", "seq": seq}, result))
            self.line.finish(seq, result)
            self.line.entries[seq].answered = self._clock.seconds
            self.line.shed(MOST_ANSWERS)
        self._wake(seq)

    async def give_up(self, seq: int, why: WorkFailure) -> None:
        """A request gets a failure, and is executed no more: the model is as if it had not come."""
        async with self._writing:
            if self._journal:
                record = JournalRecord({"kind": "given up", "seq": seq}, encode(why))
                await asyncio.to_thread(self._journal.append, record)
            self.line.give_up(seq, encode(why))
            self.line.entries[seq].answered = self._clock.seconds
        self._wake(seq)

    async def fail(self, why: WorkFailure) -> None:
        """All requests of the model fail, those to come too."""
        async with self._writing:
            await self._change(lambda line: line.fail(encode(why)))
        self._wake(*self._answered)

    async def checkpointed(self, seq: int, directory: str) -> str:
        """A checkpoint is on the disk; the journal drops what it makes superfluous. The directory that is no longer needed; empty: there is none."""
        async with self._writing:
            if self.gone:
                return directory
            former = self.line.checkpoint
            await self._change(lambda line: line.checkpointed(seq, directory))
            self.line.shed(MOST_ANSWERS)
            return former

    async def result(self, seq: int, seconds: float) -> bytes | None:
        """The result of a request, which is waited for; None: there is none yet. Raises KeyError when the request is not known (any more)."""
        if self.line.failed and seq not in self.line.entries:
            self.failure_fetched = True
            return self.line.failed
        entry = self.line.entries[seq]
        if not entry.result and not self.line.failed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._answered.setdefault(seq, asyncio.Event()).wait()
        if entry.result and entry.fetched is None:
            entry.fetched = self._clock.seconds
        if not entry.result and self.line.failed:
            self.failure_fetched = True
        return entry.result or self.line.failed

    async def remove(self, why: WorkFailure) -> None:
        """Forget the model: whoever waits for a result gets the failure."""
        async with self._writing:
            if self._journal:
                await asyncio.to_thread(self._journal.remove)
            self.gone, self._journal = True, None
            self.line.fail(encode(why))
        self._wake(*self._answered)

    def _wake(self, *requests: int) -> None:
        for seq in requests:
            answered = self._answered.pop(seq, None)
            if answered:
                answered.set()

    async def _change(self, change: Callable[[RequestLine], None]) -> None:
        """Change the line once the journal holds what it will be."""
        if self._journal:
            changed = replace(self.line, entries={seq: replace(entry) for seq, entry in self.line.entries.items()})
            change(changed)
            await asyncio.to_thread(self._journal.replace, list(_records(changed)))
        change(self.line)


def _created(line: RequestLine) -> JournalRecord:
    fields = {"kind": "created", "model": line.model, "start": line.start, "optimizer": line.optimizer}
    return JournalRecord(fields, line.creation)


def _asked(seq: int, entry: Asked) -> JournalRecord:
    fields = {"seq": seq, "digest": entry.digest, "work": entry.kind, "saves": entry.saves, "tokens": entry.tokens}
    fields |= {"ttl": entry.ttl, "changes": entry.changes}
    return JournalRecord({"kind": "asked"} | fields, entry.body)


def _found(seq: int, directory: str) -> JournalRecord:
    return JournalRecord({"kind": "found", "seq": seq, "directory": directory})


def _failed(why: bytes) -> JournalRecord:
    return JournalRecord({"kind": "failed"}, why)


def _records(line: RequestLine) -> Iterable[JournalRecord]:
    """What a journal has to hold now."""
    yield _created(line)
    if line.checkpoint:
        yield JournalRecord({"kind": "checkpoint", "seq": line.watermark, "directory": line.checkpoint})
    for seq, entry in sorted(line.entries.items()):
        yield _asked(seq, entry)
        if entry.found:
            yield _found(seq, entry.found)
        if entry.result is not None:
            yield JournalRecord({"kind": "answered", "seq": seq}, entry.result)
    if line.failed:
        yield _failed(line.failed)


def _line(records: Iterable[JournalRecord]) -> RequestLine:
    first, *others = records
    line = RequestLine(first.fields["model"], first.body, first.fields["start"], first.fields["optimizer"])
    for fields, body in others:
        match fields["kind"]:
            case "asked":
                rest = {name: fields[name] for name in ("saves", "ttl", "tokens", "changes")}
                line.accept(fields["seq"], Asked(fields["digest"], fields["work"], body, **rest))
            case "found":
                line.entries[fields["seq"]].found = fields["directory"]
            case "answered":
                line.finish(fields["seq"], body)
            case "given up":
                line.give_up(fields["seq"], body)
            case "checkpoint":
                line.checkpointed(fields["seq"], fields["directory"])
            case "failed":
                line.fail(body)
    return line


class Clients(Protocol):
    """Whose models these are."""

    def living(self) -> list[Book]:
        """All models."""

    def owner(self, book: Book) -> str:
        """The client of a model."""

    def share(self, client: str) -> int:
        """Its part of the ranks' time, relative to others'."""

    def find(self, model: str, path: str) -> str:
        """The directory of a state, by a model of the client and its name for the state; empty: there is none."""

    def refusal(self, book: Book, name: str) -> str | None:
        """Why nothing is saved under this name. None: there is room."""

    async def has_saved(self, book: Book, seq: int, directory: str) -> None:
        """A request has written a directory for a client, who does not hear of it before this."""

    async def collect(self) -> None:
        """Ranks have begun, and write nothing: what nobody has a use for can go."""


class WaitingSamples(Protocol):
    """The samples that clients wait for."""

    @property
    def directories(self) -> set[str]:
        """Snapshots that servers read now, or may still read."""

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes of prompts and answers, by client."""

    async def end(self, session: str) -> None:
        """Cancel those of a session."""
