"""The ranks' side of the gateway: which piece of work they get next, and what becomes of its result. One piece is under way at a time."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from rljob_trainer.gateway.books import MOST_ANSWERS, Book, Clients
from rljob_trainer.gateway.clients import FairShares, ServiceTally, Turns
from rljob_trainer.gateway.files import CHECKPOINTS, SNAPSHOTS, STATES, ServiceFiles
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.wire.gateway import decode_result, decode_work, encode
from rljob_trainer.wire.service import KeepModels, LoadState, SaveForSampler, SaveState, Work, WorkFailure, WorkResult

UNCOVERED = 64 * 2**20
"""Bytes of requests that no checkpoint covers, with which the next one does not wait for its time."""
LEAST_SECONDS = 10.0
"""Between a checkpoint, or one that failed, and the next one that does not wait for its time."""
MOST_ENDS = 2
"""Attempts that may fail while the ranks do a piece of work: perhaps it was that."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 600.0
"""Before the ranks are given a model again that they could not be given."""

OF_CLIENTS, UPDATE = "work of clients", "update"
"""Kinds of pieces, which have the ranks by turns."""

log = logging.getLogger(__name__)

Finish = Callable[[WorkResult | WorkFailure, bytes], Awaitable[None]]
"""What to do with a result, given as message and body."""


@dataclass(frozen=True)
class Piece:
    """What the ranks are doing."""

    work: bytes
    finish: Finish
    give_up: Callable[[WorkFailure], Awaitable[None]] | None = None
    """What becomes of it when MOST_ENDS attempts have failed with it. None: it is asked for by nobody, and comes again."""
    name: str = ""
    """What it is, in words that are the same in every epoch."""
    kind: str = OF_CLIENTS
    loads: str = ""
    """Path of the state that the ranks read for it; empty: none."""
    ticket: str = field(default_factory=partial(secrets.token_hex, 8))


class Desk:
    """Pieces of work, for the ranks of one attempt after the other."""

    def __init__(self, files: ServiceFiles, checkpoint_seconds: float, clients: Clients) -> None:
        self._files, self._seconds, self._clients = files, checkpoint_seconds, clients
        self._turns, self._changed, self._deciding = FairShares(), asyncio.Event(), asyncio.Lock()
        self._kinds = Turns()
        """Of pieces, which share the ranks' time equally: by seconds, since an update of servers has no tokens."""
        self._pending: Piece | None = None
        self._began = 0.0
        """When the ranks got it first, by the monotonic clock."""
        self._life, self._attempt = "", 0
        self._surplus = False
        """Whether the ranks may have models that they are to forget."""
        self._ends = Counter[str]()
        """Attempts that have failed in a row with a piece, by its name."""
        self.tally = ServiceTally()
        self.policies: ServedPolicies | None = None
        """Where all parameters are trained: what servers have, and are to have."""
        self.mismatches = 0
        """Repetitions with another result than the first time."""

    @property
    def reading(self) -> set[str]:
        """Paths of what the ranks read now, for themselves or for servers."""
        loaded = {self._pending.loads} if self._pending else set()
        return loaded.union({self.policies.sending} if self.policies else set())

    def changed(self) -> None:
        """There may be something to do."""
        self._changed.set()

    def drop(self, model: str) -> None:
        """Have the ranks forget a model that has failed, or is gone."""
        self._turns.forget(model)
        self._surplus = True
        self.changed()

    async def next(self, life: str, draining: bool, seconds: float, attempt: int = 0, failed: int = 0) -> Piece | None:
        """The next piece of work for the ranks of a driver. None: there is none within `seconds`.

        Args:
            life: names the driver, whose ranks have what they were given since it began
            draining: only checkpoints are wanted
            attempt: the driver's
            failed: the newest attempt that failed by what its own processes did
        """
        async with self._deciding:
            if life != self._life:
                await self._begin(life, attempt, failed == self._attempt)
                self._attempt = attempt
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
                self._ends.pop(piece.name, None)
                self._kinds.spend(piece.kind, time.monotonic() - self._began)
                self._pending = None

    async def _begin(self, life: str, attempt: int, failed: bool) -> None:
        """Ranks that are new, or that a former gateway has given work, of which nobody knows how far they are. `failed`: whether the last ones ended
        by what they did."""
        if self._pending and failed:
            await self._failed_with(self._pending)
        self.tally.begin(attempt)
        if self.policies:
            self.policies.begin()
        for book in self._clients.living():
            book.line.restart()
        keep = Piece(encode(KeepModels(models=())), self._collect)
        self._life, self._pending, self._began, self._surplus = life, keep, time.monotonic(), False

    async def _collect(self, _result: WorkResult | WorkFailure, _body: bytes) -> None:
        await self._clients.collect()

    async def _failed_with(self, piece: Piece) -> None:
        """An attempt has failed while its ranks did a piece."""
        self._ends[piece.name] += 1
        if piece.give_up and self._ends[piece.name] >= MOST_ENDS:
            why = f"the ranks have ended {MOST_ENDS} times while they did {piece.name}. Their logs say how they ended"
            log.error("%s", why)
            await piece.give_up(WorkFailure(message=why, category="server"))

    async def _offer(self, draining: bool) -> Piece | None:
        self._changed.clear()
        if self._pending is None:  # else the answer that had it was lost
            self._pending, self._began = await self._choose(draining), time.monotonic()
        return self._pending

    async def _choose(self, draining: bool) -> Piece | None:
        if self._surplus:
            self._surplus = False
            built = tuple(
                book.line.model for book in self._clients.living() if book.line.built and not book.line.failed
            )
            return Piece(encode(KeepModels(models=built)), self._ignore)
        piece = await self._of_clients(draining)
        kinds = [OF_CLIENTS] if piece else []
        if self.policies and self.policies.due and not draining:
            kinds.append(UPDATE)
        if self.policies and kinds and self._kinds.choose(kinds) == UPDATE:
            return _update(self.policies)
        return piece

    async def _of_clients(self, draining: bool) -> Piece | None:
        found = [(book, await self._of(book, draining)) for book in self._clients.living()]
        # Sessions may have ended, and models failed, while journals were written
        living = set(self._clients.living())
        ready = [(book, piece) for book, piece in found if piece and book in living and not book.line.failed]
        pieces = {book.line.model: piece for book, piece in ready}
        chosen = self._turns.choose({book.line.model: self._clients.owner(book) for book, _ in ready})
        return pieces[chosen] if chosen is not None else None

    async def _of(self, book: Book, draining: bool) -> Piece | None:
        """The next piece of a model."""
        line = book.line
        if line.failed:
            return None
        if line.place is None:
            return None if draining or time.monotonic() < book.not_before else self._making(book)
        if self._checkpoint_due(book, draining):
            return self._checkpoint(book)
        seq = None if draining else line.due()
        while seq is not None:
            piece = await self._running(book, seq)
            if piece:
                return piece
            seq = line.due()
        return None

    def _making(self, book: Book) -> Piece:
        line = book.line
        steps = list(self._steps(book))

        async def finish(result: WorkResult | WorkFailure, body: bytes) -> None:
            if isinstance(result, WorkFailure):
                await self._not_made(book, result)
                return
            if line.built + 1 == len(steps):
                book.not_before = book.pause = 0.0
                if line.entries.get(0) and line.entries[0].result is None:
                    await book.answer(0, body)
                    self.tally.trained(0)
                line.made()
            line.built += 1

        work = steps[line.built]
        name = f"{type(work).__name__} of {line.model}"
        return Piece(encode(work), finish, partial(self._not_made, book), name, loads=_loaded(work))

    def _steps(self, book: Book) -> Iterator[Work]:
        """How the ranks get a model."""
        line = book.line
        yield decode_work(line.creation)
        directory = line.checkpoint or line.start
        if directory:
            path, optimizer = self._files.path(directory), bool(line.checkpoint) or line.optimizer
            yield LoadState(model=line.model, seq=0, path=path, optimizer=optimizer)

    async def _running(self, book: Book, seq: int) -> Piece | None:
        """A request of a client. None: it needed no ranks."""
        entry, model, directory = book.line.entries[seq], book.line.model, ""
        work: Work | WorkFailure | None = None
        if entry.kind in ("SaveState", "SaveForSampler", "LoadState", "WorkFailure"):
            work = _read(entry.body)
        if isinstance(work, SaveState | SaveForSampler):
            why = self._clients.refusal(book, entry.saves)
            directory = "" if why else self._files.new(model, seq, STATES if isinstance(work, SaveState) else SNAPSHOTS)
            work = WorkFailure(message=why) if why else replace(work, path=self._files.path(directory))
        if isinstance(work, LoadState):
            work = await self._loading(book, work)

        async def finish(result: WorkResult | WorkFailure, body: bytes) -> None:
            if entry.result is None:
                if directory and isinstance(result, WorkResult):
                    await self._clients.has_saved(book, seq, directory)
                await book.answer(seq, body)
                self.tally.trained(entry.tokens)
            else:
                self._compare(model, seq, entry.result, body)
            book.line.executed(seq)  # last: after an error before this, the same result comes again
            self._turns.spend(model, entry.tokens, self._clients.share)

        if isinstance(work, WorkFailure):
            await finish(work, encode(work))
            return None
        give_up = partial(book.give_up, seq) if entry.result is None else partial(self._fail, book)
        body, name = encode(work) if work else entry.body, f"request {seq} of {model}"
        return Piece(body, finish, give_up, name, loads=_loaded(work))

    async def _loading(self, book: Book, work: LoadState) -> LoadState | WorkFailure:
        """The directory is found once: a repetition loads, or fails to find, what the first execution did."""
        entry = book.line.entries[work.seq]
        if entry.result is None and not entry.found:
            directory = self._clients.find(work.model, work.path)
            if directory:
                await book.load(work.seq, directory)
        if not entry.found:
            return WorkFailure(message=f"there is no {work.path}")
        return replace(work, path=self._files.path(entry.found))

    def _checkpoint(self, book: Book) -> Piece:
        line, seq = book.line, book.line.place
        assert seq is not None, "it is in the ranks"
        directory = self._files.new(line.model, seq, CHECKPOINTS)

        async def finish(result: WorkResult | WorkFailure, _: bytes) -> None:
            book.saved_at = time.monotonic()
            if isinstance(result, WorkFailure):
                log.warning("no checkpoint of %s: %s", line.model, result.message)
                return
            unneeded = await book.checkpointed(seq, directory)
            if unneeded:
                await asyncio.to_thread(self._files.remove, unneeded)

        return Piece(encode(SaveState(model=line.model, seq=seq, path=self._files.path(directory))), finish)

    def _checkpoint_due(self, book: Book, draining: bool) -> bool:
        since = time.monotonic() - book.saved_at
        much = book.line.uncovered >= UNCOVERED or book.line.answers > MOST_ANSWERS
        full = since >= LEAST_SECONDS and much
        return (draining or since >= self._seconds or full) and book.line.at_step()

    def _compare(self, model: str, seq: int, before: bytes, now: bytes) -> None:
        if before != now:
            self.mismatches += 1
            log.warning("request %d of %s has another result now that it was repeated", seq, model)

    async def _not_made(self, book: Book, why: WorkFailure) -> None:
        """The ranks do not get a model. One that has a checkpoint loses nothing by waiting: a later attempt may be able to read it."""
        if not book.line.checkpoint:
            await self._fail(book, why)
            return
        book.pause = min(max(2 * book.pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        book.not_before = time.monotonic() + book.pause
        log.error("%s is tried again in %d s: %s", book.line.model, book.pause, why.message)
        book.line.restart()
        self.drop(book.line.model)

    async def _fail(self, book: Book, why: WorkFailure) -> None:
        await book.fail(why)
        self.drop(book.line.model)

    async def _ignore(self, result: WorkResult | WorkFailure, body: bytes) -> None:
        """Of work whose result says nothing."""


def _loaded(work: Work | None) -> str:
    return work.path if isinstance(work, LoadState) else ""


def _update(policies: ServedPolicies) -> Piece:
    """Have servers get the policy that samples wait for, which is due."""
    work = policies.next_update()

    async def finish(result: WorkResult | WorkFailure, _: bytes) -> None:
        if isinstance(result, WorkFailure) and result.category == "server":
            policies.postponed(work, result.message)
        elif isinstance(result, WorkFailure):
            policies.refuse(work.path, result.message)
        else:
            policies.served(work, result.served, result.refused)

    async def give_up(why: WorkFailure) -> None:
        policies.refuse(work.path, why.message)

    return Piece(encode(work), finish, give_up, f"the update of servers from {work.path}", UPDATE)


def _read(body: bytes) -> Work | WorkFailure:
    try:
        return decode_work(body)
    except ValueError:  # what the client got wrong, in place of work
        failure = decode_result(body)
        assert isinstance(failure, WorkFailure), "an entry is one of the two"
        return failure
