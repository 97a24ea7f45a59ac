"""Messages about the buckets of an update: the trainer announces each, and every worker acknowledges or refuses it.

They go through the trainer's store (rendezvous.py), which takes a tenth of a millisecond. A request to the server with a call into vLLM's engine
takes a few milliseconds, so one such call receives many buckets. `name` identifies the call.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.polling import wait_until

WAKE_SECONDS = 1.0
COMPLETE, ABANDONED = "complete", "abandoned"


class AbandonedError(RuntimeError):
    """The trainer will not complete this update."""


class BucketRefusedError(RuntimeError):
    """A worker has refused a bucket; the message says why."""


class Outbox:
    """The trainer's end, for one call of one replica."""

    def __init__(self, store: dist.Store, name: str, workers: int) -> None:
        self._store, self._name, self._workers = store, name, range(workers)
        self._posted = self._verified = 0

    def post(self, bucket: dict[str, Any]) -> None:
        """Announce the next bucket."""
        self._store.set(_message(self._name, self._posted), json.dumps(bucket))
        self._posted += 1

    def end(self, how: str) -> None:
        """Say that there are no more buckets, COMPLETE or ABANDONED."""
        self._store.set(_message(self._name, self._posted), json.dumps(how))

    def confirm(self, unverified: int, given_up: Callable[[], bool]) -> None:
        """Wait until all buckets but the last `unverified` are verified, or `given_up`. Raises BucketRefusedError."""
        while self._verified < self._posted - unverified:
            keys = self._answers(self._verified)
            if not wait_until(partial(self._store.check, keys), given_up):
                return
            for problem in (self._store.get(key).decode() for key in keys):
                if problem:
                    raise BucketRefusedError(problem)
            self._verified += 1

    def refusal(self) -> str:
        """Why a worker has refused a bucket; empty when none has."""
        keys = (key for number in range(self._verified, self._posted) for key in self._answers(number))
        return next((why for key in keys if self._store.check([key]) and (why := self._store.get(key).decode())), "")

    def clear(self) -> None:
        """Delete all messages. Called when all buckets are verified, since the store lives as long as the connection."""
        for number in range(self._posted + 1):
            for key in (_message(self._name, number), *self._answers(number)):
                self._store.delete_key(key)

    def _answers(self, number: int) -> list[str]:
        return [_answer(self._name, number, worker) for worker in self._workers]


class Inbox:
    """A worker's end, for one call."""

    def __init__(self, store: dist.Store, name: str, worker: int) -> None:
        self._store, self._name, self._worker = store, name, worker
        self._answered = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the message of each bucket. Raises AbandonedError, or RuntimeError when the trainer is gone or silent for NEXT_SECONDS."""
        number = 0
        while (message := self._get(_message(self._name, number))) != COMPLETE:
            if message == ABANDONED:
                raise AbandonedError("the trainer has abandoned this update")
            yield message
            number += 1

    def acknowledge(self) -> None:
        """Report that the next bucket is verified."""
        self._answer("")

    def refuse(self, problem: str) -> None:
        """Report why the next bucket is refused."""
        self._answer(problem)

    @contextmanager
    def report_failure(self) -> Iterator[None]:
        """A context that reports an exception as the reason why the next bucket is refused."""
        try:
            yield
        except AbandonedError:
            raise
        except Exception as error:
            with suppress(RuntimeError):  # the trainer may be gone
                self.refuse(str(error) or repr(error))
            raise

    def _answer(self, problem: str) -> None:
        self._store.set(_answer(self._name, self._answered, self._worker), problem)
        self._answered += 1

    def _get(self, key: str) -> Any:
        """Wakes up every WAKE_SECONDS, by which health.py sees that this process is not frozen."""
        deadline = time.monotonic() + protocol.NEXT_SECONDS
        while True:
            began = time.monotonic()
            try:
                self._store.wait([key], timedelta(seconds=WAKE_SECONDS))
                return json.loads(self._store.get(key))
            except dist.DistStoreError:
                now = time.monotonic()
                if now > deadline or now < began + WAKE_SECONDS / 2:  # too late, or another error than a timeout
                    raise


def _message(name: str, number: int) -> str:
    return f"{name}/{number}"


def _answer(name: str, number: int, worker: int) -> str:
    return f"{name}/{number}/{worker}"
