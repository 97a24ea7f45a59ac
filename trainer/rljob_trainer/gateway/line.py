"""The requests of one model: their order, which the ranks have executed, and what to send them next. Pure: no files, no clock, no network.

    0 is the model's creation, 1, 2, 3, ... are the client's numbers, in any order of arrival and without gaps in execution.

`watermark` is the last request that the newest checkpoint has; those after it are repeated in every epoch. `place` is the last request that the ranks
have executed in this epoch.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Literal

from rljob_trainer.wire.gateway import decode_result, encode
from rljob_trainer.wire.service import ForwardBackward, SaveForSampler, SaveState, Work, WorkFailure, WorkResult

ENTRY_BYTES = 2**10
"""Of a request besides its body and its result, in this process."""

Novelty = Literal["new", "same", "other"]
"""A request is new, or repeated, or another one has its number already."""


@dataclass
class Asked:
    """One request."""

    digest: str
    """Of what was asked."""
    kind: str
    """Name of the message in wire/service.py."""
    body: bytes
    """That message; empty once no epoch repeats it."""
    tokens: int = 0
    """What it costs the ranks."""
    saves: str = ""
    """What the client calls the files that it writes; empty: it writes none."""
    ttl: int = 0
    """Seconds for which they are kept under that name; 0: until the client deletes them."""
    changes: bool = True
    """Whether it changes the model: only then is it repeated once it has a result."""
    found: str = ""
    """Directory of the state that it loads, since it was executed first: its name may stand for another one later. Empty: it loads none."""
    result: bytes | None = None
    """The body of a Result or a Failure."""
    fetched: float | None = None
    """When the client got the result first, by the ListeningClock."""
    answered: float | None = None
    """When the result came, by the ListeningClock."""

    @staticmethod
    def of(work: Work | WorkFailure, saves: str = "", ttl: int = 0) -> "Asked":
        """A request as it comes. `work`: what the ranks are to do, or why it fails in its turn."""
        body = encode(work)
        digest = hashlib.sha256(f"{saves} {ttl}".encode() + b"\0" + body).hexdigest()
        tokens = sum(len(datum.tokens) for datum in work.data) if isinstance(work, ForwardBackward) else 0
        return Asked(digest, type(work).__name__, body, tokens, saves, ttl, _changes(work))

    @property
    def stepped(self) -> bool:
        """Whether it is an optimizer step that the ranks have made. One that they refused leaves the gradient as it was."""
        made = self.kind == "OptimStep" and self.result is not None
        return made and isinstance(decode_result(self.result or b""), WorkResult)


@dataclass
class RequestLine:
    """The requests of one model."""

    model: str
    creation: bytes
    """The body of its CreateModel."""
    start: str = ""
    """Directory of the state that the client began with; empty: none."""
    optimizer: bool = False
    """Whether it began with that state's optimizer, too."""
    entries: dict[int, Asked] = field(default_factory=dict)
    done: int = -1
    """All requests up to this one have a result."""
    watermark: int = -1
    """The last request that the newest checkpoint has; -1: there is none."""
    checkpoint: str = ""
    """Directory of the newest checkpoint; empty: none."""
    failed: bytes | None = None
    """The Failure of the model itself: every request gets it."""
    place: int | None = None
    """None: the ranks do not have the model yet."""
    uncovered: int = 0
    """Bytes of the requests after the watermark."""
    answers: int = 0
    """Bytes of the results that are kept."""
    built: int = 0
    """Pieces of work of its making that are done in this epoch."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self.uncovered + self.answers + ENTRY_BYTES * len(self.entries)

    @property
    def waiting(self) -> int:
        """Requests that the ranks are to give a result, as far as none is missing before them: that one is the client's to send."""
        if self.failed:
            return 0
        numbers = takewhile(self.entries.__contains__, count(max(self.done, self.watermark) + 1))
        return sum(self.entries[seq].result is None for seq in numbers)

    def arrival(self, seq: int, request: Asked) -> Novelty:
        """What a request is that comes now."""
        if seq <= self.watermark or seq in self.entries:
            known = self.entries.get(seq)
            return "same" if known is None or known.digest == request.digest else "other"
        return "new"

    def accept(self, seq: int, request: Asked) -> None:
        """A new request is on the disk."""
        self.entries[seq] = request
        self.uncovered += len(request.body)

    def restart(self) -> None:
        """A new epoch begins: the ranks have nothing."""
        self.place, self.built = None, 0

    def due(self) -> int | None:
        """The request that the ranks are to execute next, once they have the model. None: it has not come yet."""
        if self.place is None or self.failed:
            return None
        return self.place + 1 if self.place + 1 in self.entries else None

    def made(self) -> None:
        """The ranks have the model, as it was at its newest checkpoint, or at its creation."""
        self.place = self._skipped(max(self.watermark, 0))

    def executed(self, seq: int) -> None:
        """The ranks have executed a request, and its result is on the disk."""
        assert self.place is not None and seq == self.place + 1, f"request {seq} after {self.place}"
        self.place = self._skipped(seq)

    def finish(self, seq: int, result: bytes) -> None:
        """A result is on the disk, and may be fetched."""
        entry = self.entries[seq]
        self.answers += len(result) - len(entry.result or b"")
        entry.result = result
        if not entry.changes:
            self._drop(entry)
        following = self.entries.get(self.done + 1)
        while following and following.result is not None:
            self.done += 1
            following = self.entries.get(self.done + 1)

    def give_up(self, seq: int, why: bytes) -> None:
        """A request has a failure, and is never executed."""
        self.entries[seq].changes = False
        self.finish(seq, why)

    def checkpointed(self, seq: int, directory: str) -> None:
        """A checkpoint after request `seq` is on the disk. Requests up to it are never repeated."""
        self.watermark, self.checkpoint, self.done = seq, directory, max(self.done, seq)
        for number, entry in self.entries.items():
            if number <= seq:
                self._drop(entry)

    def fail(self, why: bytes) -> None:
        """Nothing of the model is executed any more."""
        self.failed = why
        for entry in self.entries.values():
            self._drop(entry)

    def at_step(self) -> bool:
        """Whether a checkpoint now has something new and loses nothing: no gradient is left since the creation, the last checkpoint, or the last
        optimizer step that was made."""
        start = max(self.watermark, 0)
        if self.place is None or self.place != self.done or self.place <= start:
            return False
        entries = (self.entries[seq] for seq in range(self.place, start, -1))
        last = next((entry for entry in entries if entry.changes), None)
        return last is None or last.stepped

    def loads(self) -> set[str]:
        """Directories of a client's states that an epoch may begin with or load."""
        directories = {entry.found for seq, entry in self.entries.items() if seq > self.watermark}
        return directories if self.checkpoint else directories | {self.start}

    @property
    def directories(self) -> set[str]:
        """All that an epoch may read."""
        return self.loads() | {self.checkpoint}

    def presume_fetched(self, now: float) -> None:
        """Nobody knows which results were fetched before now. A client that lives, and has not, does so soon."""
        for entry in self.entries.values():
            if entry.result is not None:
                entry.fetched = now

    def forget(self, before: float) -> None:
        """Drop results that were fetched before a time, or came before it and were never fetched, of requests that are never repeated."""
        for seq in list(self._behind()):
            entry = self.entries[seq]
            since = entry.answered if entry.fetched is None else entry.fetched
            if since is not None and since < before:
                self._lose(seq)

    def shed(self, most: int) -> None:
        """Drop results of requests that are never repeated, until `most` bytes are left: first those that were fetched, and old ones first."""
        if self.answers <= most:
            return
        for seq in sorted(self._behind(), key=lambda seq: (self.entries[seq].fetched is None, seq)):
            if self.answers > most:
                self._lose(seq)

    def is_lost(self, seq: int) -> bool:
        """Whether a request had a result that is not kept any more."""
        return 0 < seq <= self.watermark and seq not in self.entries

    def _lose(self, seq: int) -> None:
        self.answers -= len(self.entries.pop(seq).result or b"")

    def _behind(self) -> Iterator[int]:
        return (seq for seq in self.entries if 0 < seq <= self.watermark)

    def _skipped(self, place: int) -> int:
        """What changes nothing is not repeated once it has a result: the files of a save are there."""
        following = self.entries.get(place + 1)
        while following and not following.changes and following.result is not None:
            place += 1
            following = self.entries.get(place + 1)
        return place

    def _drop(self, entry: Asked) -> None:
        """No epoch needs the body any more."""
        self.uncovered -= len(entry.body)
        entry.body = b""


def _changes(work: Work | WorkFailure) -> bool:
    """Whether the model is another one when it is done."""
    if isinstance(work, ForwardBackward):
        return not work.forward_only
    return not isinstance(work, SaveState | SaveForSampler | WorkFailure)
