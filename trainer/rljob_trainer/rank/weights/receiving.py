"""One receive request to a replica: while it is under way, the trainer sends buckets and watches for its failure."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rljob_trainer.rank.weights.call import Call, ReplicaError, ReplicaRefusedError
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Bucket
from rljob_trainer.wire.weights.messages import ABANDONED, COMPLETE, BucketRefusedError, Outbox
from rljob_trainer.wire.weights.transport import End

REFUSAL_POLL_SECONDS = 0.05
"""Interval at which refusals of all workers are checked, while waiting for something else."""


class Receiving:
    """The trainer's end of the request. `deadline`s are of time.monotonic(). Methods raise ReplicaError after a deadline or a refusal, or
    AttemptSuperseded."""

    def __init__(self, end: End, outbox: Outbox, call: Call) -> None:
        """`call`: the request; the replica's workers read the messages of `outbox`."""
        self._end, self._outbox, self._call = end, outbox, call
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the request was sent."""
        return time.monotonic() - self._since

    def send(self, bucket: Bucket, deadline: float) -> None:
        """Returns when the replica has received the bucket and verified the one before."""
        given_up = self._given_up(deadline)
        with self._with_its_cause():
            transport = self._end.send(bucket.payload)
            self._outbox.post({"entries": [e.as_json() for e in bucket.entries], "transport": transport})
            self._end.wait(given_up)
            self._outbox.confirm(1, given_up)
        if self._call.answered():
            self._call.result()
            raise ReplicaRefusedError(f"{protocol.RECEIVE}: ended before the last bucket")

    def complete(self, deadline: float) -> None:
        """Returns when the replica has verified all buckets."""
        with self._with_its_cause():
            self._outbox.end(COMPLETE)
            self._outbox.confirm(0, self._given_up(deadline))
        self._call.result(deadline)
        self._outbox.clear()

    def abandon(self) -> None:
        """Tell the workers to stop receiving, which ends the request."""
        with suppress(RuntimeError):
            self._outbox.end(ABANDONED)

    def close(self) -> None:
        """Give up the answer."""
        self._call.close()

    def _given_up(self, deadline: float) -> Callable[[], bool]:
        """A function that returns whether the request has been answered, and raises when any worker has refused a bucket, or after the deadline."""
        asked = time.monotonic()

        def given_up() -> bool:
            nonlocal asked
            if (now := time.monotonic()) > asked + REFUSAL_POLL_SECONDS:
                asked = now
                if refusal := self._outbox.refusal():
                    raise BucketRefusedError(refusal)
            if now > deadline:
                raise RuntimeError("a worker did not receive or verify a bucket in time")
            return self._call.answered()

        return given_up

    @contextmanager
    def _with_its_cause(self) -> Iterator[None]:
        """A context that raises a worker's reason for a failure, if there is one, instead of what this end observed."""
        try:
            yield
        except RuntimeError as error:
            if refusal := self._outbox.refusal():
                raise ReplicaRefusedError(f"{protocol.RECEIVE}: {refusal}") from error
            if self._call.answered(protocol.ABORT_SECONDS):
                self._call.result()
            raise ReplicaError(f"transfer failed: {error}") from error
