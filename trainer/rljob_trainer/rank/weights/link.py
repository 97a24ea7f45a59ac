"""A sender's side of one update of one server. Calls block, so each server has a thread of its own."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rljob_trainer.rank.weights.call import ReplicaError, ReplicaRefusedError
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Bucket
from rljob_trainer.wire.weights.messages import ABANDONED, COMPLETE, BucketRefusedError, Outbox
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.transport import End, Transport

POLL_SECONDS = 0.2
"""Interval at which refusals and signs of life of all workers are read, while waiting for something else."""


class Link:
    """The connection to the workers of one server, for one update. Methods raise ReplicaError when a worker refuses the update, or shows no sign of
    life for SILENT_SECONDS; the link is unusable then."""

    def __init__(self, transport: Transport, home: SenderStore, session: str, group: str, end: End | None) -> None:
        """`session`: the update at this server. `end`, `group`: the connection of an earlier update, if its workers still have it."""
        self._transport, self._home, self._session = transport, home, session
        self.end, self.group = end, group or session
        self._outbox: Outbox | None = None

    def join(self) -> None:
        """Returns when the workers are connected."""
        self._outbox = Outbox(self._home.store, self._session, workers=1)  # how many there are is known later
        with self._with_its_cause():
            end = self.end or self._transport.connect(self._home, self._session, self._watch())
        self.end, self._outbox = end, Outbox(self._home.store, self._session, end.workers)

    def send(self, bucket: Bucket) -> None:
        """Returns when the server has received the bucket and verified the one before."""
        given_up = self._watch()
        with self._with_its_cause():
            transport = self._ends.describe(bucket.payload)
            self._box.post({"entries": [e.as_json() for e in bucket.entries], "transport": transport})
            self._box.await_workers(given_up)  # the transfers have time limits of their own
            self._ends.send(bucket.payload)
            self._ends.wait(given_up)
            self._box.confirm(1, given_up)

    def end_phase(self) -> None:
        """Say that this sender has no more buckets in this phase (messages.py)."""
        with self._with_its_cause():
            self._box.end_phase()

    def complete(self) -> None:
        """Returns when the server has verified all buckets."""
        with self._with_its_cause():
            self._box.end(COMPLETE)
            self._box.confirm(0, self._watch())
            self._box.clear()

    def close(self) -> None:
        """Abandon the update. The server keeps its old weights."""
        with suppress(RuntimeError):
            if self._outbox:
                self._outbox.end(ABANDONED)
        if self.end:
            self.end.close()
        self.end = None

    @property
    def _ends(self) -> End:
        assert self.end, "the link is joined"
        return self.end

    @property
    def _box(self) -> Outbox:
        assert self._outbox, "the link is joined"
        return self._outbox

    def _watch(self) -> Callable[[], bool]:
        """A function that returns False, and raises when a worker has refused the update, or none of what it does was seen for SILENT_SECONDS."""
        box, began, asked = self._box, time.monotonic(), 0.0
        signs: dict[int, tuple[int, float]] = {}

        def given_up() -> bool:
            nonlocal asked
            if (now := time.monotonic()) < asked + POLL_SECONDS:
                return False
            asked = now
            if refusal := box.refusal():
                raise BucketRefusedError(refusal)
            for worker, sign in enumerate(box.signs()):
                if worker not in signs or sign != signs[worker][0]:
                    signs[worker] = sign, now if worker in signs else began
            worker, (_, seen) = min(signs.items(), key=lambda item: item[1][1])
            if now > seen + protocol.SILENT_SECONDS:
                raise RuntimeError(f"worker {worker} neither received nor loaded a bucket in time")
            return False

        return given_up

    @contextmanager
    def _with_its_cause(self) -> Iterator[None]:
        """A context that raises a worker's reason for a failure, if there is one, instead of what this end observed."""
        try:
            yield
        except RuntimeError as error:
            if self._outbox and (refusal := self._refusal_soon(self._outbox)):
                raise ReplicaRefusedError(refusal) from error
            raise ReplicaError(f"transfer failed: {error}") from error

    def _refusal_soon(self, outbox: Outbox) -> str:
        """A worker's reason, which it may say a moment after the connection broke."""
        deadline = time.monotonic() + POLL_SECONDS
        while not (refusal := outbox.refusal()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)
        return refusal
