"""What clients have: sessions, models, samplers, and what they have saved. Independent of the protocol in which they ask."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.books import Book, WaitingSamples
from rljob_trainer.gateway.clients import BusyError, MemoryBudget, Quotas
from rljob_trainer.gateway.desk import Desk
from rljob_trainer.gateway.files import Claim, ServiceFiles
from rljob_trainer.gateway.line import ENTRY_BYTES, Asked, RequestLine
from rljob_trainer.gateway.listening import ListeningClock
from rljob_trainer.gateway.registry import Names, OpenSession, Sampler, SavedModel, most_unnamed, session_of
from rljob_trainer.wire.gateway import decode_work
from rljob_trainer.wire.service import CreateModel, Work, WorkFailure

GRACE_SECONDS = 600.0
"""For this long a result can be fetched again."""
MOST_SESSIONS, MOST_OF_CLIENT = 10_000, 5_000
"""Of all clients, and of one."""
MOST_FAILED = 100
"""Models of a client that have failed. They are kept, so that their client hears why; those that it has heard of make room for further ones."""

log = logging.getLogger(__name__)


class UnknownError(LookupError):
    """There is no such thing, or not for this client."""


class GatewayService:
    """Everything that a client can name. What it creates is on the disk when the method returns."""

    def __init__(self, spec: ServiceSpec, root: Path, job: str = "", number: int = 0) -> None:
        """`root`: a directory of the checkpoint's volume, which is ours from now on. What a former gateway wrote there is there again. `job`,
        `number`: see Claim. Raises OSError, GatewaySuperseded, JournalDamaged."""
        self.spec, self.claim, self.clock = spec, Claim(root, job, number), ListeningClock()
        self.files = ServiceFiles(root, self.claim.name)
        self.files.take_journals(self.claim.check)
        self.names = Names(self.files.names, self.claim.check)
        self.books: dict[str, Book] = {}
        self.sampling: WaitingSamples | None = None
        self.memory = MemoryBudget(self._kept)
        self.away = ""
        """Why nobody does the clients' work now; empty: somebody does."""
        self._leaving = set[str]()
        """Directories that go as soon as nobody reads them."""
        self._creating = asyncio.Lock()
        self._restore()
        self._limits = Quotas(spec)
        self.desk = Desk(self.files, spec.checkpoint_seconds, self)

    def _restore(self) -> None:
        for path in sorted(self.files.models.glob("*.log")):
            book = Book.restore(path, self.claim.check, self.clock)
            if book and session_of(book.line.model) in self.names.sessions:
                self.books[book.line.model] = book
            elif book:  # a crash while its session ended
                path.unlink()
                self.files.remove(book.line.checkpoint)

    async def open_session(self, client: str) -> str:
        """A new session. Raises BusyError."""
        if len(self.names.sessions) >= MOST_SESSIONS:
            raise BusyError(f"there are {MOST_SESSIONS} sessions")
        if sum(session.client == client for session in self.names.sessions.values()) >= MOST_OF_CLIENT:
            raise BusyError(f"this client has {MOST_OF_CLIENT} sessions")
        name = secrets.token_hex(8)
        await self.names.open(name, client, self.clock.seconds)
        return name

    def hear(self, client: str, session: str) -> None:
        """The client lives. Raises UnknownError."""
        self._session(client, session).heard = self.clock.seconds

    async def close_session(self, client: str, session: str) -> None:
        """The client is done: its models and samplers are forgotten. It asks again where the answer was lost, so that a session that has ended, or is
        none of the client's, is no error."""
        known = self.names.sessions.get(session)
        if known and known.client == client:
            await self._end(session)
        else:
            await asyncio.to_thread(self.claim.check)

    async def create(
        self, client: str, created: CreateModel, start: str = "", optimizer: bool = False, why: str = ""
    ) -> None:
        """A new model, which begins with the state that clients know as `start`, if that is given. A model that is there already is the same request.
        `why`: it fails with this reason. Raises UnknownError for its session, BusyError where too many of its models have failed of which it has not
        heard."""
        async with self._creating:  # a client that repeats its request may not wait for the answer
            session = session_of(created.model)
            self.hear(client, session)
            if created.model not in self.books:
                await self._limit_failed(client)
                self.books[created.model] = await self._created(created, start, optimizer, why)
        self.desk.changed()

    async def _created(self, created: CreateModel, start: str, optimizer: bool, unfit: str) -> Book:
        first, directory = Asked.of(created), self.find(created.model, start)
        why = unfit or self._no_room(self.names.sessions[session_of(created.model)].client)
        if start and not directory:
            why = why or f"there is no {start}"
        line = RequestLine(created.model, first.body, "" if why else directory, optimizer)
        first.body = b""  # the line has it
        failure = WorkFailure(message=why) if why else None
        path = self.files.journal(line.model)
        return await Book.create(path, line, first, self.claim.check, self.clock, failure)

    async def _limit_failed(self, client: str) -> None:
        """Forget the oldest of a client's models that have failed, where they are many. Raises BusyError: the client has heard of none of them."""
        failed = [book for book in self.books_of(client) if book.line.failed]
        if len(failed) < MOST_FAILED:
            return
        heard = [book.line.model for book in failed if book.failure_fetched]
        if not heard:
            raise BusyError(f"{MOST_FAILED} models of this client have failed: fetch why, or end their sessions")
        await self._forget(heard[0], "it has failed, and so have many after it")

    def _no_room(self, client: str) -> str | None:
        """Why this client gets no further model."""
        trained, own = _not_failed(self.living()), _not_failed(self.books_of(client))
        return self._limits.models(client, len(own), len(trained))

    async def ask(
        self, client: str, model: str, seq: int, work: Work | WorkFailure, saves: str = "", ttl: int = 0
    ) -> None:
        """A request of a model. One with a number that is taken is the same request; if it asks for something else, the model fails.

        Args:
            work: what the ranks are to do; or why this request fails, in its turn
            saves: what the client calls the files that it writes: a path, or the name of a sampler, which has no `/`
            ttl: seconds for which a path names them; 0: until the client deletes it

        Raises UnknownError for the model, BusyError when too much is waiting.
        """
        book = self.book(client, model)
        self.hear(client, session_of(model))
        entry = Asked.of(work, saves, ttl)
        size = ENTRY_BYTES + len(entry.body)
        with self.memory.taking(client, 0 if book.line.failed else size):  # a model that has failed keeps nothing
            arrival = await book.ask(seq, entry)
        if arrival == "other" and not book.line.failed:
            await book.fail(WorkFailure(message=f"request {seq} of {model} came twice, with different contents"))
            self.desk.drop(model)
        self.desk.changed()

    def book(self, client: str, model: str) -> Book:
        """A model of a client. Raises UnknownError."""
        self._session(client, session_of(model))
        if model not in self.books:
            raise UnknownError(f"there is no model {model}")
        return self.books[model]

    async def sample_from(self, client: str, name: str, path: str = "") -> None:
        """A new sampler: of what was saved as `path`, or of the base model. One that is there already is the same request, whatever the path names by
        now. Raises UnknownError; ValueError for the name of another one."""
        self.hear(client, session_of(name))
        known = self.names.samplers.get(name)
        if known is None:
            directory = self.named(client, path).directory if path else ""
            await self.names.sample(name, Sampler(client, directory, path))
        elif not known.is_of(path):
            raise ValueError(f"{name} is there, and samples from something else")

    def sampler(self, client: str, name: str) -> Sampler:
        """Raises UnknownError."""
        sampler = self.names.samplers.get(name)
        if sampler is None or sampler.client != client:
            raise UnknownError(f"there is no sampler {name}")
        return sampler

    def named(self, client: str, path: str) -> SavedModel:
        """What the client has saved as `path`. Raises UnknownError."""
        saved = self.names.saved.get(path)
        if saved is None or saved.client != client:
            raise UnknownError(f"there is no {path}")
        return saved

    async def delete(self, client: str, path: str) -> None:
        """Delete what was saved as `path`. Raises UnknownError."""
        self.named(client, path)
        await self._delete(path)

    async def keep(self, client: str, path: str, ttl: int) -> None:
        """Keep what was saved as `path` for so many seconds from now; 0: until it is deleted. Raises UnknownError."""
        self.named(client, path)
        if not await self.names.keep(path, _expiry(ttl)):
            raise UnknownError(f"there is no {path}")

    async def sweep(self) -> None:
        """End sessions of clients that are gone, and drop what has expired, and results that nobody fetches any more."""
        self.clock.mark()
        for name in {*self.names.sessions, *map(session_of, self.books)}:
            if self._is_over(name):
                log.warning("session %s is over: nothing was heard of it for too long", name)
                try:
                    await self._end(name)
                except OSError as error:  # a full volume, for example: clients can still delete, and it is tried again
                    log.warning("session %s does not end: %s", name, error)
        await self._expire()
        await self._remove_unused(*self._leaving)
        for book in self.books.values():
            book.line.forget(self.clock.seconds - GRACE_SECONDS)

    def _is_over(self, session: str) -> bool:
        """Its client has said nothing for too long; or the volume's trouble has left models of a session that has ended."""
        known = self.names.sessions.get(session)
        return known is None or self.clock.seconds - known.heard > self.spec.session_timeout_seconds

    async def _expire(self) -> None:
        now = time.time()
        for path, saved in list(self.names.saved.items()):
            if saved.expires is not None and saved.expires <= now:
                try:
                    await self._delete(path, saved)
                except OSError as error:  # it is tried again
                    log.warning("%s has expired, and is not deleted: %s", path, error)

    async def _delete(self, path: str, only: SavedModel | None = None) -> None:
        """`only`: what it has to be, where that is given: a client may have kept it, or saved it again, meanwhile."""
        saved = await self.names.delete(path, only)
        if saved:
            log.info("%s is deleted", path)
            await self._remove_unused(saved.directory)

    def living(self) -> list[Book]:
        return list(self.books.values())

    def owner(self, book: Book) -> str:
        """The client of a model; empty: its session has ended just now."""
        session = self.names.sessions.get(session_of(book.line.model))
        return session.client if session else ""

    def books_of(self, client: str) -> list[Book]:
        return [book for book in self.books.values() if self.owner(book) == client]

    def saved_by(self, client: str) -> Mapping[str, SavedModel]:
        """What a client has saved, by its paths."""
        return {path: saved for path, saved in self.names.saved.items() if saved.client == client}

    def share(self, client: str) -> int:
        return self._limits.share(client)

    def find(self, model: str, path: str) -> str:
        """The directory of what the client of a model has saved as `path`; empty: there is no such thing."""
        session, saved = self.names.sessions.get(session_of(model)), self.names.saved.get(path)
        return saved.directory if session and saved and saved.client == session.client else ""

    def refusal(self, book: Book, name: str) -> str | None:
        """Why a model's client may not save under this name. What goes with its session does not count, nor what replaces something."""
        client = self.owner(book)
        if "/" not in name or name in self.names.saved:
            return None
        return self._limits.saved(client, len(self.saved_by(client)))

    async def has_saved(self, book: Book, seq: int, directory: str) -> None:
        """A request has written a directory for a client."""
        session, entry = self.names.sessions.get(session_of(book.line.model)), book.line.entries[seq]
        name = entry.saves
        if session is None:
            await asyncio.to_thread(self.files.remove, directory)
            return
        if "/" not in name:
            if not await self.names.sample(name, Sampler(session.client, directory)):
                await self._remove_unused(directory)
            stem, most = directory.rpartition("/")[0] + "/", most_unnamed(self.spec.max_rank)
            await self._remove_unused(*await self.names.replace_old(stem, most))
            return
        made = creation_of(book)
        trained = made.rank, made.mlp, made.attention
        saved = SavedModel(book.line.model, session.client, directory, time.time(), *trained, _expiry(entry.ttl))
        former = self.names.saved.get(name)
        await self.names.save(name, saved)
        if former:
            await self._remove_unused(former.directory)

    async def collect(self) -> None:
        """Delete what nobody has a use for, and nobody can have any more."""
        await asyncio.to_thread(self.files.collect, self._used | self._read, self.claim.check)

    async def _end(self, session: str) -> None:
        async with self._creating:  # no model of it begins meanwhile
            gone = await self.names.close(session) if session in self.names.sessions else set[str]()
        if self.sampling:
            await self.sampling.end(session)
        await self._remove_unused(*gone)
        for model in [m for m in self.books if session_of(m) == session]:
            await self._forget(model, "the session has ended")

    async def _forget(self, model: str, why: str) -> None:
        book = self.books.pop(model, None)
        if book:  # else somebody else ends its session, too
            self.desk.drop(model)
            await book.remove(WorkFailure(message=why))
            await self._remove_unused(*book.line.directories)

    async def _remove_unused(self, *directories: str) -> None:
        """Delete what no name, no sampler and no model needs any more, as soon as nobody reads it."""
        unused = set(directories) - self._used - {""}
        self._leaving = (self._leaving - set(directories)) | unused
        gone = unused - self._read
        if gone:
            await asyncio.to_thread(self.claim.check)
        for directory in gone:
            await asyncio.to_thread(self.files.remove, directory)
            self._leaving.discard(directory)

    @property
    def _read(self) -> set[str]:
        """By servers, or by ranks, for which a directory that is gone would be the end."""
        loaded = {self.files.directory(path) for path in self.desk.reading}
        return loaded.union(self.sampling.directories if self.sampling else set())

    @property
    def _used(self) -> set[str]:
        return self.names.directories.union(*(book.line.directories for book in self.books.values()))

    def _session(self, client: str, name: str) -> OpenSession:
        session = self.names.sessions.get(name)
        if session is None or session.client != client:
            raise UnknownError(f"there is no session {name}")
        return session

    def _kept(self) -> Mapping[str, int]:
        """Bytes of requests, results and samples, by client."""
        kept = Counter(self.sampling.held if self.sampling else {})
        for book in self.books.values():
            kept[self.owner(book)] += book.line.size
        return kept


def _expiry(ttl: int) -> float | None:
    return time.time() + ttl if ttl else None


def _not_failed(books: list[Book]) -> list[Book]:
    return [book for book in books if not book.line.failed]


def creation_of(book: Book) -> CreateModel:
    """How a model was created."""
    created = decode_work(book.line.creation)
    assert isinstance(created, CreateModel), "request 0"
    return created
