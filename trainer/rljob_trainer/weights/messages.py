"""What the two ends of an update say to each other while its buckets travel: a message per bucket, which every worker acknowledges or refuses.

They go through the trainer's store (rendezvous.py), which takes a tenth of a millisecond. A request to the server and its call into vLLM's engine
take a few; there is one for all buckets. Both ends have the same `name` for what one such call reads.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from rljob_trainer.weights import protocol
from rljob_trainer.weights.polling import wait_until

COMPLETE, ABANDONED = "complete", "abandoned"


class AbandonedError(RuntimeError):
    """The trainer will not complete this update."""


class BucketRefusedError(RuntimeError):
    """A worker refuses a bucket, and says why."""


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
        """Why a worker refuses a bucket, if one does."""
        keys = (key for number in range(self._verified, self._posted) for key in self._answers(number))
        return next((why for key in keys if self._store.check([key]) and (why := self._store.get(key).decode())), "")

    def clear(self) -> None:
        """When all is verified: the store lives as long as the connection."""
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
        """A message per bucket. Raises AbandonedError, RuntimeError when the trainer is gone or nothing comes for NEXT_SECONDS."""
        number = 0
        while (message := self._get(_message(self._name, number))) != COMPLETE:
            if message == ABANDONED:
                raise AbandonedError("the trainer has abandoned this update")
            yield message
            number += 1

    def acknowledge(self) -> None:
        """Say of the next bucket that it is verified."""
        self._answer("")

    def refuse(self, problem: str) -> None:
        """Say of the next bucket why it is not."""
        self._answer(problem)

    @contextmanager
    def report_failure(self) -> Iterator[None]:
        """What fails in here is why the next bucket is refused."""
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
        self._store.wait([key], timedelta(seconds=protocol.NEXT_SECONDS))
        return json.loads(self._store.get(key))


def _message(name: str, number: int) -> str:
    return f"{name}/{number}"


def _answer(name: str, number: int, worker: int) -> str:
    return f"{name}/{number}/{worker}"
