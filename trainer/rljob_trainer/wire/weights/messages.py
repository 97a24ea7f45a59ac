"""Messages of a sender to the workers of all servers, and what each worker does about them.

They go through the sender's store (rendezvous.py), which takes a tenth of a millisecond, and stay there until the sender's next update. `update` is
the name of an update. The sender says one thing after another, and every worker has one line, in which it says where it is:

    Group        make a group (transport.py) of these workers: the line is READY when the worker begins, DONE when it is connected
    Bucket       receive it through that group: READY when the worker can, which may load the one before meanwhile, DONE when it is received
    TURN_OVER    the group has the bucket; take one of the next sender
    PHASE_OVER   the sender has no more buckets in this phase: workers take those of all senders in turn, and none of a phase before all senders
                 have ended the one before
    COMPLETE     DONE when all buckets of all senders are verified
    ABANDONED    the update will not be completed

A group is of the workers that get its buckets: those that do not need any of their tensors go on to the next sender at once. A sender says the next
thing when all workers that it concerns are DONE. If it says something before that, what it said last is called off: a worker has failed, and
the others make a new group without it. A worker's line is FAILED when it could not do what was said, which need not be its fault, and REFUSED when it
does not take the update; it then takes part no longer.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

GIVEN_UP = "the trainer has abandoned this update"
"""A worker's reason when one of its senders has, or has left it out; the others are not the cause."""
TURN_OVER, PHASE_OVER, COMPLETE, ABANDONED = "turn over", "phase over", "complete", "abandoned"
SenderMessage = dict[str, Any] | str
"""A group {"group": name, "members": [Member], "made": whether it is that of an earlier update, "dropped": [names of groups to leave], "without":
[pod uids of servers that are left out]}, a bucket {"bucket": number, "group": name, "entries": [Entry], "transport": what the transport needs}, or
one of the above."""

LONGEST_PAUSE = 0.02
"""Seconds between two looks at the lines, in the end: there may be hundreds of workers."""


class MessageState(StrEnum):
    """Of a worker, concerning the message that it has read last."""

    READ = "read"
    READY = "ready"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


class WorkerPosition(NamedTuple):
    """Where a worker is."""

    message: int
    """Number of the message that it has read last."""
    state: MessageState
    sign: int
    """Grows while the worker lives."""
    reason: str
    """Why it has failed or refused."""

    @staticmethod
    def parse(text: str) -> "WorkerPosition":
        message, state, sign, reason = text.split(" ", 3)
        return WorkerPosition(int(message), MessageState(state), int(sign), reason)

    def __str__(self) -> str:
        return f"{self.message} {self.state} {self.sign} {self.reason}"


class AbandonedError(RuntimeError):
    """The trainer will not complete this update."""


class Outbox:
    """The sender's end."""

    def __init__(self, store: SenderStore, update: str) -> None:
        self._store, self._update = store, update
        self.said = 0
        """Number of messages."""

    def say(self, message: Mapping[str, Any] | str) -> None:
        self._store.set(_message(self._update, self.said), json.dumps(message))
        self.said += 1

    def lines(self, workers: Iterable[str]) -> dict[str, WorkerPosition]:
        """By worker: its line, if it has written one."""
        lines = {worker: self._store.get(_line(self._update, worker)) for worker in workers}
        return {worker: WorkerPosition.parse(text) for worker, text in lines.items() if text}


class Inbox:
    """A worker's end."""

    def __init__(self, store: RemoteStore, update: str, worker: str) -> None:
        self._store, self._update, self._worker = store, update, worker
        self._read, self._sign, self._state, self._reason = 0, 0, MessageState.READ, ""

    @property
    def has_next(self) -> bool:
        """Whether the sender has said more. If something is under way, that is called off."""
        return self._store.get(_message(self._update, self._read)) is not None

    def next(self, waiting: Callable[[], None]) -> SenderMessage:
        """The next message. `waiting` is called every ALIVE_SECONDS until it is there, and may raise.

        Raises AbandonedError, OSError when the sender is gone, and RuntimeError when it is silent for NEXT_SECONDS.
        """
        message: SenderMessage = json.loads(self._awaited(waiting))
        if message == ABANDONED:
            raise AbandonedError(GIVEN_UP)
        self._read += 1
        self._write(MessageState.READ)
        return message

    def alive(self) -> None:
        """Show the sender that this worker lives."""
        self._write(self._state, self._reason)

    def ready(self) -> None:
        self._write(MessageState.READY)

    def done(self) -> None:
        self._write(MessageState.DONE)

    def failed(self, why: str) -> None:
        self._write(MessageState.FAILED, why)

    def refuse(self, why: str) -> None:
        self._write(MessageState.REFUSED, why)

    def _write(self, state: MessageState, reason: str = "") -> None:
        self._state, self._reason, self._sign = state, reason, self._sign + 1
        self._store.set(
            _line(self._update, self._worker), str(WorkerPosition(self._read - 1, state, self._sign, reason))
        )

    def _awaited(self, waiting: Callable[[], None]) -> str:
        deadline = time.monotonic() + protocol.NEXT_SECONDS
        while True:
            text = self._store.get(_message(self._update, self._read), protocol.ALIVE_SECONDS)
            if text:
                return text
            waiting()
            if time.monotonic() > deadline:
                raise RuntimeError("the sender said nothing in time")


def _message(update: str, number: int) -> str:
    return f"{update}/{number}"


def _line(update: str, worker: str) -> str:
    return f"{update}/at/{worker}"
