"""A sender's side of one update of all servers: what it says to their workers (messages.py), and what it makes of their lines.

A bucket goes through a group of the sender and all workers that get it. Who dies, hangs or refuses is left out with its server: the others make a new
group, and get the bucket again that not all of them had.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rljob_api.callbacks import nothing
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
    MessageState,
    Outbox,
)
from rljob_trainer.wire.weights.polling import now_and_then, wait_until
from rljob_trainer.wire.weights.protocol import ServerWorker
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
    members: tuple[ServerWorker, ...]
    end: End


class Delivery:
    """Nothing in here raises because of a server: see `failed`."""

    def __init__(
        self,
        transport: Transport,
        home: SenderStore,
        update: str,
        servers: Mapping[str, Sequence[ServerWorker]],
        awaits: Callable[[str], None],
        kept: dict[tuple[ServerWorker, ...], KeptGroup],
    ) -> None:
        """`servers`: by pod, in the order of the chain. `awaits`: see Publisher. `kept`: groups of earlier updates, of which this one takes those
        that it uses."""
        self._transport, self._home, self._update, self._awaits = transport, home, update, awaits
        self._outbox = Outbox(home, update)
        self._attendance, self._servers, self._kept = Attendance(servers), servers, kept
        self.groups: dict[tuple[ServerWorker, ...], KeptGroup] = {}
        """That this update has used, by their members in the order of the chain."""
        self._dropped: list[str] = []
        """Groups that workers have not been asked to leave yet."""
        self._concerned: Sequence[ServerWorker] | None = None
        self._made, self._buckets, self._fruitless = 0, 0, 0

    @property
    def failed(self) -> dict[str, Loss]:
        """By pod: why its server was left out."""
        return self._attendance.failed

    def send(self, bucket: Bucket, gets: Callable[[ServerWorker], bool]) -> None:
        """Returns when all workers that get the bucket have received it. They load it then."""
        said = self._outbox.said
        while members := tuple(filter(gets, self._attendance.members)):
            if self._join(members) and self._transfer(bucket, members):
                break
            self._drop(members)
            self._leave_out()
        if self._outbox.said > said:
            self._outbox.say(TURN_OVER if self._attendance.live else ABANDONED)
        self._buckets, self._fruitless = self._buckets + 1, 0

    def end_phase(self) -> None:
        """Say that this sender has no more buckets in this phase."""
        self._outbox.say(PHASE_OVER)

    def complete(self) -> None:
        """Returns when all servers have verified all buckets."""
        self._outbox.say(COMPLETE)
        self._concerned = None
        while self._attendance.live and not self._all(MessageState.DONE, "verify weights"):
            self._leave_out()
        if not self._attendance.live:  # who was only slow still reads, and would wait for more
            self._outbox.say(ABANDONED)

    def close(self) -> None:
        """Abandon the update."""
        self._outbox.say(ABANDONED)
        for members in [*self.groups]:
            self._drop(members)

    def _join(self, members: tuple[ServerWorker, ...]) -> bool:
        """Have these workers be a group. Returns whether they are."""
        if members in self.groups:
            return True
        if kept := self._kept.pop(members, None):
            self.groups[members] = kept
            return self._together(members, self._group(kept.name, members, made=True), nothing, "connect")
        home = self._home.offer  # in the name, by which a door keeps the connections of all senders
        name = f"{self._update}/{home.address}:{home.port}/{self._made}"
        self._made += 1
        is_done = self._together(members, self._group(name, members), partial(self._connect, name, members), "connect")
        if members not in self.groups:  # but some workers may have connected
            self._dropped.append(name)
        return is_done and members in self.groups

    def _group(self, name: str, members: Sequence[ServerWorker], made: bool = False) -> dict[str, Any]:
        dropped, self._dropped = self._dropped, []
        without = [own[0].server for pod, own in self._servers.items() if pod in self.failed]
        return {"group": name, "members": members, "made": made, "dropped": dropped, "without": without}

    def _connect(self, name: str, members: tuple[ServerWorker, ...]) -> None:
        end = self._transport.connect(self._home, name, members, self._is_broken())
        self.groups[members] = KeptGroup(name, members, end)

    def _transfer(self, bucket: Bucket, members: tuple[ServerWorker, ...]) -> bool:
        """Have a group receive a bucket. Returns whether all have it."""
        group, size = self.groups[members], bucket.payload.numel()

        def act() -> None:
            group.end.send(bucket.payload)
            group.end.wait(self._is_broken(size))

        entries, transport = [e.as_json() for e in bucket.entries], group.end.describe(bucket.payload)
        message = {"bucket": self._buckets, "group": group.name, "entries": entries, "transport": transport}
        return self._together(members, message, act, "receive weights", size)

    def _drop(self, members: tuple[ServerWorker, ...]) -> None:
        if group := self.groups.pop(members, None):
            group.end.close()
            self._dropped.append(group.name)

    def _together(
        self,
        members: Sequence[ServerWorker],
        message: Mapping[str, Any],
        act: Callable[[], None],
        what: str,
        size: int = 0,
    ) -> bool:
        """Have workers do what a message says while this end does its part. Returns whether they have. `size`: bytes that are transferred."""
        self._outbox.say(message)
        self._concerned = members
        if not self._all(MessageState.READY, what):
            return False
        limit = _seconds(size)
        try:
            act()
        except (OSError, RuntimeError) as error:
            log.info("weights: could not %s: %s", what, error)
            limit = 0.0  # the others may have done theirs
        return self._all(MessageState.DONE, what, limit)

    def _all(self, state: MessageState, what: str, limit: float = float("inf")) -> bool:
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
        self._attendance.see(self._outbox.said - 1, self._outbox.lines(self._attendance.names), self._concerned)

    def _leave_out(self) -> None:
        """Leave out the servers that are the cause of a failure, or, if that cannot be known, in the end those that are behind others. Nobody is in a
        group with them any more."""
        if not self._attendance.leave_out():
            self._fruitless += 1
            if self._fruitless > MOST_FRUITLESS:
                self._attendance.leave_out_others(MessageState.DONE)
        live = set(self._attendance.members)
        for members in [members for members in self.groups if not live.issuperset(members)]:
            self._drop(members)


def _seconds(size: int) -> float:
    """Time limit of a transfer in which all workers show that they live. Longer than that for silence, which names who is the cause."""
    return protocol.transfer_seconds(size) + 2 * protocol.ALIVE_SECONDS


def _after(seconds: float) -> Callable[[], bool]:
    """A function that returns whether so much time has passed since now."""
    end = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > end

    return is_over
