"""A sender's side of one update of all servers: what it says to their workers (messages.py), and what it makes of their lines.

What it sends goes through one group of itself and all workers. Who dies, hangs or refuses is left out with its server: the others make a new group,
and get the bucket again that not all of them had.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rljob_trainer.rank.weights.attendance import Attendance, Loss
from rljob_trainer.rank.weights.rounds import NAMED_SECONDS, named
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.bucket import Bucket
from rljob_trainer.wire.weights.messages import (
    ABANDONED,
    COMPLETE,
    LONGEST_PAUSE,
    PHASE_OVER,
    TURN_OVER,
    Outbox,
    Progress,
)
from rljob_trainer.wire.weights.polling import now_and_then, wait_until
from rljob_trainer.wire.weights.protocol import Member
from rljob_trainer.wire.weights.rendezvous import SenderStore
from rljob_trainer.wire.weights.transport import End, Transport

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""Interval at which workers' lines are read while this end does its part."""
MOST_FRUITLESS = 2
"""Groups that are made again without leaving anybody out. After that, those are left out that did not get what others got."""


class KeptGroup(NamedTuple):
    """A connection that lives on between updates."""

    name: str
    members: tuple[Member, ...]
    end: End


class Delivery:
    """Nothing in here raises because of a server: see `failed`."""

    def __init__(
        self,
        transport: Transport,
        home: SenderStore,
        update: str,
        servers: Mapping[str, Sequence[Member]],
        awaits: Callable[[str], None],
    ) -> None:
        """`servers`: by pod, in the order of the chain. `awaits`: see Publisher."""
        self._transport, self._home, self._update, self._awaits = transport, home, update, awaits
        self._outbox = Outbox(home, update)
        self._attendance = Attendance(servers)
        self.group: KeptGroup | None = None
        self._groups, self._buckets, self._fruitless = 0, 0, 0

    @property
    def members(self) -> tuple[Member, ...]:
        """Workers of all servers that take part, in the order of the chain."""
        return tuple(self._attendance.members)

    @property
    def failed(self) -> dict[str, Loss]:
        """By pod: why its server was left out."""
        return self._attendance.failed

    def join(self, kept: KeptGroup | None) -> None:
        """Returns when all workers are connected. `kept`: the group of an earlier update of the same workers."""
        self.group = kept
        if not self._attendance.live:
            return
        if not (kept and self._together(_group(kept.name, kept.members, made=True), lambda: None, "connect")):
            self._make_group()
        self._fruitless = 0

    def send(self, bucket: Bucket) -> None:
        """Returns when all servers have received the bucket and verified the one before."""
        while self._attendance.live:
            if self._together(
                self._announced(bucket), lambda: self._transfer(bucket), "receive weights", bucket.payload.numel()
            ):
                self._outbox.say(TURN_OVER)
                break
            self._leave_out()
            self._make_group()
        self._buckets, self._fruitless = self._buckets + 1, 0

    def end_phase(self) -> None:
        """Say that this sender has no more buckets in this phase."""
        self._outbox.say(PHASE_OVER)

    def complete(self) -> None:
        """Returns when all servers have verified all buckets."""
        self._outbox.say(COMPLETE)
        while self._attendance.live and not self._all(Progress.DONE, "verify weights"):
            self._leave_out()
            self._drop_group()
        self._outbox.clear()

    def close(self) -> None:
        """Abandon the update."""
        self._outbox.say(ABANDONED)
        self._drop_group()

    def _make_group(self) -> None:
        """Have the servers that take part make a group, and leave out those with which that is impossible."""
        home = self._home.offer  # in the name, by which a door keeps the connections of all senders
        while self._attendance.live:
            self._drop_group()
            name, members = f"{self._update}/{home.address}:{home.port}/{self._groups}", self.members
            self._groups += 1
            if self._together(_group(name, members), partial(self._connect, name, members), "connect") and self.group:
                return
            self._leave_out()
        self._drop_group()
        self._outbox.say(ABANDONED)

    def _together(self, message: Mapping[str, Any], act: Callable[[], None], what: str, size: int = 0) -> bool:
        """Have all workers do what a message says while this end does its part. Returns whether they have. `size`: bytes that are transferred."""
        self._outbox.say(message)
        if not self._all(Progress.READY, what):
            return False
        limit = _seconds(size)
        try:
            act()
        except (OSError, RuntimeError) as error:
            log.info("weights: could not %s: %s", what, error)
            limit = 0.0  # the others may have done theirs
        return self._all(Progress.DONE, what, limit)

    def _announced(self, bucket: Bucket) -> dict[str, Any]:
        assert self.group
        transport = self.group.end.describe(bucket.payload)
        return {"bucket": self._buckets, "entries": [e.as_json() for e in bucket.entries], "transport": transport}

    def _transfer(self, bucket: Bucket) -> None:
        assert self.group
        self.group.end.send(bucket.payload)
        self.group.end.wait(self._is_broken(bucket.payload.numel()))

    def _connect(self, name: str, members: tuple[Member, ...]) -> None:
        end = self._transport.connect(self._home, name, members, self._is_broken())
        self.group = KeptGroup(name, members, end)

    def _drop_group(self) -> None:
        if self.group:
            self.group.end.close()
        self.group = None

    def _all(self, state: Progress, what: str, limit: float = float("inf")) -> bool:
        """Wait until all workers are in a state, or cannot come there any more."""
        late = _after(limit)

        def is_over() -> bool:
            self._see()
            return self._attendance.all(state) or self._attendance.broken() or late()

        if not wait_until(is_over, _after(NAMED_SECONDS), LONGEST_PAUSE):
            self._awaits(f"{named(self._attendance.others(state))} to {what}")
            wait_until(is_over, longest=LONGEST_PAUSE)
            self._awaits("")
        return self._attendance.all(state)

    def _is_broken(self, size: int = 0) -> Callable[[], bool]:
        """A function that returns whether this end need not go on with its part. `size`: bytes that are transferred."""
        late = _after(_seconds(size))

        def is_broken() -> bool:
            self._see()
            return self._attendance.broken() or late()

        return now_and_then(POLL_SECONDS, is_broken)

    def _see(self) -> None:
        self._attendance.see(self._outbox.said - 1, self._outbox.lines(self._attendance.names))

    def _leave_out(self) -> None:
        """Leave out the servers that are the cause of a failure, or, if that cannot be known, in the end those that are behind others."""
        if not self._attendance.leave_out():
            self._fruitless += 1
            if self._fruitless > MOST_FRUITLESS:
                self._attendance.leave_out_others(Progress.DONE)


def _group(name: str, members: Sequence[Member], made: bool = False) -> dict[str, Any]:
    return {"group": name, "members": members, "made": made}


def _seconds(size: int) -> float:
    """Time limit of a transfer in which all workers show that they live. Longer than that for silence, which names who is the cause."""
    return protocol.transfer_seconds(size) + 2 * protocol.ALIVE_SECONDS


def _after(seconds: float) -> Callable[[], bool]:
    """A function that returns whether so much time has passed since now."""
    began = time.monotonic()
    return lambda: time.monotonic() > began + seconds
