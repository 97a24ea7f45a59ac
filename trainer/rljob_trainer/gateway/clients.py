"""Clients of a service: who calls, what each may have, whose turn it is, and what was done for them.

The ranks' time is shared by tokens (start-time fair queueing), first among the clients that have work, by their shares, and then among the models
of the client.
"""

import hashlib
import hmac
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.spec.service import ClientLimits, ServiceSpec

ANYBODY = "anybody"
"""The client, where there are no keys."""
LARGEST_KEY = 4096
"""Most bytes of a key's file."""
MOST_HELD, MOST_OF_CLIENT = 512 * 2**20, 384 * 2**20
"""Bytes of all clients, and of one."""
SMALL, SPARE = 4096, 16 * 2**20
"""A request of so many bytes may use a little more: it may be the optimizer step that frees the rest."""


class Keys:
    """The keys of a directory: a file for each client, with its name. They are read again whenever somebody calls, so that a Secret can change."""

    def __init__(self, directory: Path | None) -> None:
        """None: everybody may call."""
        self._directory = directory

    def client(self, key: str) -> str | None:
        """The client that has this key; None: nobody has. Takes as long for every wrong key. Raises OSError for the directory."""
        if self._directory is None:
            return ANYBODY
        offered, caller = hashlib.sha256(key.encode(errors="surrogateescape")).digest(), None
        for file in sorted(self._directory.iterdir()):
            known = b"" if file.name.startswith(".") else _key(file)
            same = hmac.compare_digest(hashlib.sha256(known).digest(), offered)
            caller = file.name if same and known else caller
        return caller


def _key(file: Path) -> bytes:
    """Empty: it is no file, was taken away just now, or cannot be read, which is the trouble of one client alone."""
    try:
        return file.read_bytes()[:LARGEST_KEY].strip() if file.is_file() else b""
    except OSError:
        return b""


class Quotas:
    """Those of every client. A message says which limit it was, and what to do; None: there is room."""

    def __init__(self, spec: ServiceSpec) -> None:
        self._spec, self._own = spec, {client.name: client for client in spec.clients}

    def share(self, client: str) -> int:
        """Its part of the ranks' time, relative to others'."""
        return self._of(client).share

    def models(self, client: str, trained: int, of_all: int) -> str | None:
        """Why a further model is refused. `trained`: models of the client; `of_all`: of all clients."""
        if of_all >= self._spec.max_models:
            return f"this service trains {self._spec.max_models} models at a time (spec.service.maxModels): end another session first"
        most = self._of(client).max_models
        if most is not None and trained >= most:
            return (
                f"{client} trains {most} models at a time ({self._field(client)}.maxModels): end another session first"
            )
        return None

    def saved(self, client: str, kept: int) -> str | None:
        """Why nothing further is saved. `kept`: states and snapshots of the client."""
        most = self._of(client).max_saved
        if most is not None and kept >= most:
            return f"{client} has saved {kept} states and snapshots, and {most} is the most ({self._field(client)}.maxSaved): delete one first"
        return None

    def _of(self, client: str) -> ClientLimits:
        return self._own.get(client, self._spec.limits)

    def _field(self, client: str) -> str:
        return f"spec.service.clients[{client}]" if client in self._own else "spec.service.limits"


class BusyError(RuntimeError):
    """The client has to try again later."""


class MemoryBudget:
    """Bytes by client."""

    def __init__(self, kept: Callable[[], Mapping[str, int]]) -> None:
        """`kept`: what clients have, by their names."""
        self._kept, self._taken = kept, Counter[str]()

    @contextmanager
    def taking(self, client: str, size: int) -> Iterator[None]:
        """Room for what is read now; what is kept of it counts before this ends. Raises BusyError."""
        held = self._taken + Counter(self._kept())
        spare = SPARE if size <= SMALL else 0
        if size and (held[client] + size > MOST_OF_CLIENT + spare or held.total() + size > MOST_HELD + spare):
            raise BusyError(
                f"this client has {held[client]} bytes of requests and results here, and all clients have {held.total()}: "
                f"{MOST_OF_CLIENT} and {MOST_HELD} are the most"
            )
        self._taken[client] += size
        try:
            yield
        finally:
            self._taken[client] -= size


class Turns:
    """The work that clients, or models of one client, have had, as tokens over their shares."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._now = 0.0

    def choose(self, ready: Collection[str]) -> str:
        """Who has had least of those that have work: one at least. One that had nothing to do meanwhile is not owed what others had."""
        for name in ready:
            self._spent[name] = max(self._spent.get(name, 0.0), self._now)
        chosen = min(sorted(ready), key=self._spent.__getitem__)
        self._now = self._spent[chosen]
        return chosen

    def spend(self, name: str, cost: float) -> None:
        """`cost`: of its work."""
        self._spent[name] = self._spent.get(name, self._now) + cost

    def forget(self, name: str) -> None:
        self._spent.pop(name, None)


class FairShares:
    """Turns of clients, and of each client's models."""

    def __init__(self) -> None:
        self._clients, self._models = Turns(), defaultdict[str, Turns](Turns)
        self._owners: dict[str, str] = {}

    def choose(self, ready: Mapping[str, str]) -> str | None:
        """The model whose turn it is. `ready`: those that have work, each with its client."""
        if not ready:
            return None
        self._owners |= ready
        client = self._clients.choose(set(ready.values()))
        return self._models[client].choose([model for model, owner in ready.items() if owner == client])

    def spend(self, model: str, tokens: float, share: Callable[[str], int]) -> None:
        """What the work of a model has cost. One that has gone meanwhile costs nobody anything. `share`: of a client."""
        client = self._owners.get(model)
        if client:
            self._clients.spend(client, max(tokens, 1.0) / share(client))
            self._models[client].spend(model, max(tokens, 1.0))

    def forget(self, model: str) -> None:
        """The model is gone. A client without models remains, so that it gains nothing by coming again."""
        client = self._owners.pop(model, None)
        if client:
            self._models[client].forget(model)
            if client not in self._owners.values():
                del self._models[client]


@dataclass
class ServiceTally:
    """What was answered that nobody had an answer to before. A repetition counts for nothing."""

    attempt: int = 0
    """Whose ranks began last."""
    answered: int = 0
    """By its ranks."""
    trained_tokens: int = 0
    sampled_tokens: int = 0
    active: float = field(default_factory=time.monotonic)
    """When somebody was answered last, or the ranks, or the gateway, began."""

    def begin(self, attempt: int) -> None:
        """The ranks of this attempt have loaded the model and ask for work."""
        self.attempt, self.answered, self.active = attempt, 0, time.monotonic()

    def trained(self, tokens: int) -> None:
        """A request of a model was answered."""
        self.answered += 1
        self.trained_tokens += tokens
        self.active = time.monotonic()

    def sampled(self, tokens: int) -> None:
        self.sampled_tokens += tokens
        self.active = time.monotonic()
