"""What the two ends of an update say to each other while its buckets travel: a message per bucket, and a verdict on it by every worker.

They go through the trainer's store (rendezvous.py), which takes a tenth of a millisecond. A request to the server and its call into vLLM's engine
take a few; there is one for all buckets. Both ends have the same `name` for what one such call reads.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rljob_trainer.weights import protocol

COMPLETE, ABANDONED = "complete", "abandoned"
POLL_SECONDS = 0.0002


class AbandonedError(RuntimeError):
    """The trainer will not complete this update."""


class VerdictError(RuntimeError):
    """What a worker says against a bucket."""


class Outbox:
    """The trainer's end, for one call of one replica."""

    def __init__(self, store: dist.Store, name: str, workers: int) -> None:
        self._store, self._name, self._workers = store, name, range(workers)
        self._posted = self._verified = 0

    def post(self, bucket: dict[str, Any]) -> None:
        """Say what the next bucket holds."""
        self._store.set(_message(self._name, self._posted), json.dumps(bucket))
        self._posted += 1

    def end(self, how: str) -> None:
        """COMPLETE or ABANDONED: there are no more buckets."""
        self._store.set(_message(self._name, self._posted), json.dumps(how))

    def confirm(self, unverified: int, given_up: Callable[[], bool]) -> None:
        """Wait until all buckets but the last `unverified` are, or `given_up`. Raises VerdictError, RuntimeError after TRANSFER_SECONDS."""
        deadline = time.monotonic() + protocol.TRANSFER_SECONDS
        while self._verified < self._posted - unverified:
            keys = self._verdicts(self._verified)
            while not self._store.check(keys):
                if given_up():
                    return
                if time.monotonic() > deadline:
                    raise RuntimeError("a worker did not verify a bucket in time")
                time.sleep(POLL_SECONDS)
            for problem in (self._store.get(key).decode() for key in keys):
                if problem:
                    raise VerdictError(problem)
            self._verified += 1

    def objection(self) -> str:
        """What a worker says against a bucket, if one does."""
        keys = (key for number in range(self._verified, self._posted) for key in self._verdicts(number))
        return next((why for key in keys if self._store.check([key]) and (why := self._store.get(key).decode())), "")

    def clear(self) -> None:
        """When all is verified: the store lives as long as the connection."""
        for number in range(self._posted + 1):
            for key in (_message(self._name, number), *self._verdicts(number)):
                self._store.delete_key(key)

    def _verdicts(self, number: int) -> list[str]:
        return [_verdict(self._name, number, worker) for worker in self._workers]


class Inbox:
    """A worker's end, for one call."""

    def __init__(self, store: dist.Store, name: str, worker: int) -> None:
        self._store, self._name, self._worker = store, name, worker
        self._judged = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A message per bucket. Raises AbandonedError, RuntimeError when the trainer is gone or nothing comes for NEXT_SECONDS."""
        number = 0
        while (message := self._get(_message(self._name, number))) != COMPLETE:
            if message == ABANDONED:
                raise AbandonedError("the trainer has abandoned this update")
            yield message
            number += 1

    def verified(self, problem: str = "") -> None:
        """The verdict on the first bucket that has none."""
        self._store.set(_verdict(self._name, self._judged, self._worker), problem)
        self._judged += 1

    @contextmanager
    def objections(self) -> Iterator[None]:
        """What fails in here is the verdict on the first bucket that has none."""
        try:
            yield
        except AbandonedError:
            raise
        except Exception as error:
            with suppress(RuntimeError):  # the trainer may be gone
                self.verified(str(error) or repr(error))
            raise

    def _get(self, key: str) -> Any:
        self._store.wait([key], timedelta(seconds=protocol.NEXT_SECONDS))
        return json.loads(self._store.get(key))


def _message(name: str, number: int) -> str:
    return f"{name}/{number}"


def _verdict(name: str, number: int, worker: int) -> str:
    return f"{name}/{number}/{worker}"
