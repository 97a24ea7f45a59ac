"""Messages about the buckets that a sender has for the workers of one server: the sender announces each, and every worker acknowledges or refuses it.

They go through the sender's store (rendezvous.py), which takes a tenth of a millisecond. `name` is that of the update at this server. A sender's
buckets come in phases: workers take buckets of all senders in turn, and no bucket of a phase before all senders have ended the phase before it.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.polling import wait_until

GIVEN_UP = "the trainer has abandoned this update"
"""A worker's reason when one of its senders has; the others are not the cause."""
PHASE_OVER, COMPLETE, ABANDONED = "phase over", "complete", "abandoned"
SenderMessage = dict[str, Any] | str
"""A bucket, PHASE_OVER or COMPLETE."""


class AbandonedError(RuntimeError):
    """The trainer will not complete this update."""


class BucketRefusedError(RuntimeError):
    """A worker has refused a bucket; the message says why."""


class Outbox:
    """The sender's end, for one update of one server."""

    def __init__(self, store: dist.Store, name: str, workers: int) -> None:
        self._store, self._name, self._workers = store, name, range(workers)
        self._posted = 0
        self._buckets: list[int] = []
        """Numbers of the messages that are answered: those that announce buckets, and COMPLETE."""
        self._verified = 0
        """How many buckets are."""

    def post(self, bucket: Mapping[str, Any]) -> None:
        """Announce the next bucket."""
        self._buckets.append(self._posted)
        self._say(bucket)

    def end_phase(self) -> None:
        self._say(PHASE_OVER)

    def end(self, how: str) -> None:
        """Say that there are no more buckets, COMPLETE or ABANDONED. Workers confirm COMPLETE like a bucket, once they have those of all senders."""
        if how == COMPLETE:
            self._buckets.append(self._posted)
        self._say(how)

    def await_workers(self, given_up: Callable[[], bool]) -> None:
        """Wait until all workers take the bucket that was announced last. Raises what `given_up` raises."""
        keys = [_ready(self._name, self._buckets[-1], worker) for worker in self._workers]
        wait_until(partial(self._store.check, keys), given_up)

    def confirm(self, unverified: int, given_up: Callable[[], bool]) -> None:
        """Wait until all buckets but the last `unverified` are verified. Raises BucketRefusedError, and what `given_up` raises."""
        while self._verified < len(self._buckets) - unverified:
            keys = self._answers(self._buckets[self._verified])
            if not wait_until(partial(self._store.check, keys), given_up):
                return
            for problem in (self._store.get(key).decode() for key in keys):
                if problem:
                    raise BucketRefusedError(problem)
            self._verified += 1

    def refusal(self) -> str:
        """Why a worker has refused the update; empty when none has."""
        keys = (_refusal(self._name, worker) for worker in self._workers)
        return next((self._store.get(key).decode() for key in keys if self._store.check([key])), "")

    def signs(self) -> list[int]:
        """[worker] -> a number that grows while it waits for another sender, and with every bucket that it has verified."""
        return [int(self._store.add(_alive(self._name, worker), 0)) for worker in self._workers]

    def clear(self) -> None:
        """Delete all messages. Called when the update is over at this server, since the store outlives it."""
        for number in range(self._posted):
            ready = (_ready(self._name, number, worker) for worker in self._workers)
            for key in (_message(self._name, number), *ready, *self._answers(number)):
                self._store.delete_key(key)
        for worker in self._workers:
            self._store.delete_key(_alive(self._name, worker))
            self._store.delete_key(_refusal(self._name, worker))

    def _say(self, message: Mapping[str, Any] | str) -> None:
        self._store.set(_message(self._name, self._posted), json.dumps(message))
        self._posted += 1

    def _answers(self, number: int) -> list[str]:
        return [_answer(self._name, number, worker) for worker in self._workers]


class Inbox:
    """A worker's end, for one update."""

    def __init__(self, store: dist.Store, name: str, worker: int) -> None:
        self._store, self._name, self._worker = store, name, worker
        self._read = 0
        self._unanswered: list[int] = []

    @property
    def has_next(self) -> bool:
        return bool(self._store.check([_message(self._name, self._read)]))

    def next(self, waiting: Callable[[], None]) -> SenderMessage:
        """The next message. `waiting` is called every ALIVE_SECONDS until it is there, and may raise.

        Raises AbandonedError, or RuntimeError when the sender is gone or silent for NEXT_SECONDS.
        """
        message: SenderMessage = json.loads(self._get(_message(self._name, self._read), waiting))
        if message == ABANDONED:
            raise AbandonedError(GIVEN_UP)
        if message != PHASE_OVER:
            self._unanswered.append(self._read)
        self._read += 1
        return message

    def alive(self) -> None:
        """Show the sender that this worker waits for another one."""
        self._store.add(_alive(self._name, self._worker), 1)

    def ready(self) -> None:
        """Report that this worker takes the bucket that was read last."""
        self._store.set(_ready(self._name, self._unanswered[-1], self._worker), "")

    def acknowledge(self) -> None:
        """Report that the first bucket without an answer is verified, or, after the last one, that the update is complete."""
        self.alive()
        self._store.set(_answer(self._name, self._unanswered.pop(0), self._worker), "")

    def refuse(self, problem: str) -> None:
        """Report why this worker takes no more buckets."""
        self._store.set(_refusal(self._name, self._worker), problem)
        for number in self._unanswered:
            self._store.set(_answer(self._name, number, self._worker), problem)

    def _get(self, key: str, waiting: Callable[[], None]) -> bytes:
        deadline = time.monotonic() + protocol.NEXT_SECONDS
        while True:
            began = time.monotonic()
            try:
                self._store.wait([key], timedelta(seconds=protocol.ALIVE_SECONDS))
                return bytes(self._store.get(key))
            except dist.DistStoreError:
                now = time.monotonic()
                if now > deadline or now < began + protocol.ALIVE_SECONDS / 2:  # another error than a timeout
                    raise
            waiting()


def _message(name: str, number: int) -> str:
    return f"{name}/{number}"


def _answer(name: str, number: int, worker: int) -> str:
    return f"{name}/{number}/{worker}"


def _ready(name: str, number: int, worker: int) -> str:
    return f"{name}/{number}/ready/{worker}"


def _alive(name: str, worker: int) -> str:
    return f"{name}/alive/{worker}"


def _refusal(name: str, worker: int) -> str:
    return f"{name}/refused/{worker}"
