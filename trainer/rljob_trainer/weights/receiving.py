"""One request to receive: the trainer sends buckets to one replica while the request is under way, and learns how it ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rljob_trainer.weights import protocol
from rljob_trainer.weights.bucket import Bucket
from rljob_trainer.weights.call import Call, ReplicaError, ReplicaRefusedError
from rljob_trainer.weights.messages import ABANDONED, COMPLETE, BucketRefusedError, Outbox
from rljob_trainer.weights.transport import End

REFUSAL_POLL_SECONDS = 0.05
"""How often all workers are asked whether they refused, in a wait for one thing only."""


class Receiving:
    """The trainer's end. `deadline`s are of time.monotonic(); what takes longer raises ReplicaError, as does a refusal. Or AttemptSuperseded."""

    def __init__(self, end: End, outbox: Outbox, call: Call) -> None:
        """`call`: the request, whose workers read what `outbox` writes."""
        self._end, self._outbox, self._call = end, outbox, call
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was asked for."""
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
        """Have the workers receive no more. The request is answered then."""
        with suppress(RuntimeError):
            self._outbox.end(ABANDONED)

    def close(self) -> None:
        """The answer is not asked for any more."""
        self._call.close()

    def _given_up(self, deadline: float) -> Callable[[], bool]:
        """Whether the request has been answered. Raises when a worker has refused a bucket, whatever the others do, and after the deadline."""
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
        """What a worker says of a failure goes before what this end saw of it."""
        try:
            yield
        except RuntimeError as error:
            if refusal := self._outbox.refusal():
                raise ReplicaRefusedError(f"{protocol.RECEIVE}: {refusal}") from error
            if self._call.answered(protocol.ABORT_SECONDS):
                self._call.result()
            raise ReplicaError(f"transfer failed: {error}") from error
