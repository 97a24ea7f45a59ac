"""The names that clients have for things: sessions, what was saved, and samplers. A name is on the disk before it counts."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rljob_trainer.gateway.journal import Journal, JournalRecord
from rljob_trainer.wire.rollout_server import Adapter, SampleRequest

KEPT_MODELS, KEPT_ADAPTERS = 2, 32
"""Snapshots of a model without a path. Of whole models: the newest one, and the one that a client may sample from while it makes that. Of adapters:
those that were made, or sampled from, last."""
NUMBERS = 128
"""Of requests for samples, that are written down at once."""
GROWTH = 2**20
"""Bytes by which the journal becomes more than twice what it was, before it is written anew: what has ended leaves it then."""
MOST_NUMBERS = 2**15
"""Of a queue that a gateway may have, if it is lost: clients choose how far these are apart. It is several times as many as a gateway has open."""


@dataclass
class OpenSession:
    """A client's process."""

    client: str
    heard: float = 0.0
    """When it was heard last, by the ListeningClock: 0, as long as it was not heard since the gateway began."""


@dataclass(frozen=True)
class SavedModel:
    """What a client has saved under a name."""

    model: str
    client: str
    directory: str
    time: float
    rank: int
    mlp: bool
    attention: bool
    expires: float | None
    """When it is deleted; None: when the client deletes it."""


@dataclass(frozen=True)
class Sampler:
    """What a client samples from."""

    client: str
    directory: str = ""
    """Of the snapshot; empty: the base model."""
    path: str = ""
    """The snapshot's name; empty: it has none."""
    replaced: bool = False
    """By later ones of its model, so that its snapshot is deleted."""

    def is_of(self, path: str) -> bool:
        """Whether it was made of what was saved as `path`; empty: of the base model."""
        return self.path == path and (path != "" or not (self.directory or self.replaced))

    def of(self, request: SampleRequest, root: Path) -> SampleRequest:
        """The request, for what this sampler samples from. `root`: of the service."""
        if not self.directory:
            return request
        path = str(root / self.directory)
        return replace(request, adapter=Adapter(path, path))


@dataclass(frozen=True)
class SampleNumbers:
    """Numbers of the requests of a queue (completions.py) that a gateway may have, if it is lost."""

    first: int
    beyond: int
    """The first one that it has not."""


class Names:
    """Those of all clients. What a former gateway wrote down is there again."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        """`path`: the journal; `check`: see there."""
        self.sessions: dict[str, OpenSession] = {}
        self.saved: dict[str, SavedModel] = {}
        self.samplers: dict[str, Sampler] = {}
        self.numbers: dict[str, SampleNumbers] = {}
        """By queue."""
        self._journal, self._writing = Journal(path, check), asyncio.Lock()
        self._restore()
        self._most = 2 * self._journal.size + GROWTH
        self.lost = dict(self.numbers)
        """By queue: requests that a former gateway may have had, and that the client has not heard of yet."""

    @property
    def directories(self) -> set[str]:
        """Those that have a name, or are sampled from."""
        return {saved.directory for saved in self.saved.values()} | {s.directory for s in self.samplers.values()}

    async def open(self, session: str, client: str, now: float) -> None:
        """`now`: by the ListeningClock."""
        await self._write("session", session, client=client)
        self.sessions[session] = OpenSession(client, now)

    async def close(self, session: str) -> set[str]:
        """The directories from which the session has sampled."""
        async with self._writing:  # what is written of the session after this finds that it has ended
            await self._append("closed", session)
            del self.sessions[session]
        gone = {name: sampler for name, sampler in self.samplers.items() if session_of(name) == session}
        self.samplers = {name: sampler for name, sampler in self.samplers.items() if name not in gone}
        self.numbers = _of_others(self.numbers, session)
        self.lost = _of_others(self.lost, session)
        return {sampler.directory for sampler in gone.values()}

    async def save(self, path: str, saved: SavedModel) -> None:
        await self._write("saved", path, **asdict(saved))
        self.saved[path] = saved

    async def keep(self, path: str, expires: float | None) -> bool:
        """Change when it is deleted. False: it is not there any more."""
        async with self._writing:
            if path not in self.saved:
                return False
            kept = replace(self.saved[path], expires=expires)
            await self._append("saved", path, **asdict(kept))
            self.saved[path] = kept
            return True

    async def delete(self, path: str, only: SavedModel | None = None) -> SavedModel | None:
        """What was deleted. None: nothing, since it is not there any more, or is not `only`, where that is given."""
        async with self._writing:
            saved = self.saved.get(path)
            if saved is None or (only and saved != only):
                return None
            await self._append("deleted", path)
            return self.saved.pop(path)

    async def sample(self, name: str, sampler: Sampler) -> bool:
        """False: its session has ended."""
        async with self._writing:
            if session_of(name) not in self.sessions:
                return False
            if self.samplers.get(name) != sampler:
                await self._append("sampler", name, **asdict(sampler))
                self.samplers[name] = sampler
            return True

    def sampled(self, name: str) -> None:
        """Somebody samples from it: it is replaced after others."""
        self.samplers[name] = self.samplers.pop(name)

    async def replace_old(self, stem: str, most: int) -> set[str]:
        """Of a model's snapshots without a path, whose directories begin with `stem`, keep only the last. Directories of the others."""
        unnamed = [(name, s) for name, s in self.samplers.items() if not s.path and s.directory.startswith(stem)]
        old = unnamed[: max(len(unnamed) - most, 0)]
        for name, sampler in old:
            await self.sample(name, replace(sampler, directory="", replaced=True))
        return {sampler.directory for _, sampler in old}

    def has_number(self, queue: str, number: int) -> bool:
        """Whether a next gateway knows that this one may have the request."""
        return queue in self.numbers and number < self.numbers[queue].beyond

    async def number(self, queue: str, number: int, oldest: Callable[[], int]) -> None:
        """A request is new, and so may be those after it: NUMBERS at a time, since each would be a write. `oldest`: the number of the oldest request
        whose answer the client may not have."""
        async with self._writing:
            if self.has_number(queue, number):  # since a write for one that came just before
                return
            first = min(oldest(), number)
            first = min(first, self.lost[queue].first) if queue in self.lost else first
            await self._append("numbers", queue, first=first, beyond=number + NUMBERS)
            self._add_numbers(queue, first, number + NUMBERS)

    def _add_numbers(self, queue: str, first: int, beyond: int) -> None:
        known = self.numbers.get(queue)
        beyond = max(beyond, known.beyond if known else 0)
        self.numbers[queue] = SampleNumbers(max(first, beyond - MOST_NUMBERS), beyond)

    def _restore(self) -> None:
        for fields, _ in self._journal.records:
            values = {name: value for name, value in fields.items() if name not in ("kind", "id")}
            match fields["kind"]:
                case "session":
                    self.sessions[fields["id"]] = OpenSession(**values)
                case "closed":
                    self.sessions.pop(fields["id"], None)
                case "saved":
                    self.saved[fields["id"]] = SavedModel(**values)
                case "deleted":
                    self.saved.pop(fields["id"], None)
                case "sampler":
                    self.samplers[fields["id"]] = Sampler(**values)
                case "numbers":
                    self._add_numbers(fields["id"], **values)
        self.samplers = {name: s for name, s in self.samplers.items() if session_of(name) in self.sessions}
        self.numbers = {name: n for name, n in self.numbers.items() if session_of(name) in self.sessions}
        self._journal.records.clear()
        self._journal.renew(self._records())

    def _records(self) -> Iterator[JournalRecord]:
        for name, session in self.sessions.items():
            yield JournalRecord({"kind": "session", "id": name, "client": session.client})
        for path, saved in self.saved.items():
            yield JournalRecord({"kind": "saved", "id": path} | asdict(saved))
        for name, sampler in self.samplers.items():
            yield JournalRecord({"kind": "sampler", "id": name} | asdict(sampler))
        for queue, numbers in self.numbers.items():
            yield JournalRecord({"kind": "numbers", "id": queue} | asdict(numbers))

    async def _write(self, kind: str, name: str, **fields: object) -> None:
        async with self._writing:
            await self._append(kind, name, **fields)

    async def _append(self, kind: str, name: str, **fields: object) -> None:
        if self._journal.size > self._most:
            await asyncio.to_thread(self._journal.renew, list(self._records()))
            self._most = 2 * self._journal.size + GROWTH
        await asyncio.to_thread(self._journal.append, JournalRecord({"kind": kind, "id": name} | fields))


def _of_others[T](named: dict[str, T], session: str) -> dict[str, T]:
    return {name: value for name, value in named.items() if session_of(name) != session}


def most_unnamed(max_rank: int) -> int:
    """Snapshots without a path that are kept of a model. `max_rank`: spec.service.maxRank."""
    return KEPT_ADAPTERS if max_rank else KEPT_MODELS


def session_of(name: str) -> str:
    """The session of a model, sampler or queue."""
    return name.partition(":")[0]


def sampler_name(session: str, number: int) -> str:
    return f"{session}:sample:{number}"


def seed_of(name: str) -> int:
    """A seed for what a client gave none: the same whenever it is asked for.

    48 bits, so that requests have no sample in common: with 24, of ten thousand for 16 samples each of one prompt some hundred had one."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
