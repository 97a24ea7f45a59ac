"""One sender of an update, as a worker hears it: its messages, the group that it makes, and the buckets that come through that."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rljob_trainer.wire.weights import chain, ipc, nccl
from rljob_trainer.wire.weights.door import Door, Membership
from rljob_trainer.wire.weights.messages import GIVEN_UP, TURN_OVER, AbandonedError, Inbox, SenderMessage
from rljob_trainer.wire.weights.polling import CalledOffError, now_and_then
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore

WorkerEnd = chain.WorkerEnd | nccl.WorkerEnd | ipc.WorkerEnd
POLL_SECONDS = 0.2
"""Interval at which messages are looked for while something is under way, which they call off."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """This process in its server."""

    server: str
    """Pod uid, as the sender knows it."""
    worker: int
    door: Door
    device: torch.device


class Connection(NamedTuple):
    """A sender and the groups with it that live on between updates."""

    home: RemoteStore
    groups: dict[str, WorkerEnd]
    """By name."""

    def close(self) -> None:
        for end in self.groups.values():
            end.close()
        self.home.close()


class UpdateSource:
    """`join` and `receive` return when this worker has done what a message says, or could not; the sender reads which."""

    def __init__(
        self,
        place: WorkerPlace,
        end_cls: type[WorkerEnd],
        connection: Connection | RemoteStore,
        update: str,
        waiting: Callable[[], None],
    ) -> None:
        """`connection`: that of an earlier update, if it exists. `waiting` is called now and then while something is under way, and may raise."""
        self._place, self._end_cls, self._waiting = place, end_cls, waiting
        self._home = connection.home if isinstance(connection, Connection) else connection
        self._groups = connection.groups if isinstance(connection, Connection) else {}
        self._used: set[str] = set()
        """Groups that this update has used."""
        self._own = place.server, place.worker
        self.inbox = Inbox(self._home, update, f"{place.server}/{place.worker}")
        self._received = -1
        """Number of the last bucket."""
        self._elsewhere = False
        """The sender's turn is for other workers."""

    def turn(self) -> Iterator[SenderMessage]:
        """What the sender says until its turn is over for this worker; last, by which message. Nothing is awaited of a bucket for other workers: the
        rest of that turn is read at the next one. Raises AbandonedError when the sender has left this worker out."""
        while True:
            message = self.inbox.next(self._waiting)
            if not isinstance(message, str) and "members" in message:
                self._heed(message)
            if self._elsewhere:
                self._elsewhere = message != TURN_OVER
            elif isinstance(message, str) or self._concerns(message):
                yield message
                if isinstance(message, str):
                    return
            else:
                self._elsewhere = True
                yield TURN_OVER
                return

    def join(self, message: dict[str, Any]) -> None:
        """Become a member of a group."""
        group, members = message["group"], [ServerWorker(*member) for member in message["members"]]
        if message["made"] and group not in self._groups:
            self.inbox.failed("this worker is not connected")
            return
        self.inbox.ready()
        if message["made"] or self._tried(partial(self._connect, group, members)):
            self._used.add(group)
            self.inbox.done()

    def receive(self, message: dict[str, Any], payload: Tensor) -> bool:
        """Receive a bucket. Returns whether it is there, for the first time."""
        end = self._groups[message["group"]]
        if not self._tried(partial(end.receive, payload, message["transport"])):
            return False
        self.inbox.ready()
        if not self._tried(lambda: end.wait(self._is_called_off())):
            return False
        self.inbox.done()
        is_new = bool(message["bucket"] > self._received)
        self._received = message["bucket"]
        return is_new

    def connection(self) -> Connection:
        """What lives on after a complete update: the groups that it has used."""
        for group in self._groups.keys() - self._used:
            self._groups.pop(group).close()
        return Connection(self._home, self._groups)

    def close(self) -> None:
        """Leave the sender."""
        Connection(self._home, self._groups).close()
        self._groups = {}

    def _heed(self, message: dict[str, Any]) -> None:
        """Leave groups that the sender has left."""
        if self._place.server in message["without"]:
            raise AbandonedError(GIVEN_UP)
        for group in self._groups.keys() & message["dropped"]:
            self._groups.pop(group).close()

    def _concerns(self, message: dict[str, Any]) -> bool:
        """Whether a group, or a bucket, is for this worker."""
        return self._own in _names(message["members"]) if "members" in message else message["group"] in self._groups

    def _connect(self, group: str, members: Sequence[ServerWorker]) -> None:
        own = Membership(self._home, group, members, _names(members).index(self._own), self._place.door)
        self._groups[group] = self._end_cls(own, self._is_called_off())

    def _tried(self, act: Callable[[], None]) -> bool:
        """Whether it succeeded. If not, the sender learns why, or has called it off."""
        try:
            act()
        except AbandonedError:
            raise
        except CalledOffError:
            return False
        except (OSError, RuntimeError) as error:
            self.inbox.failed(str(error) or repr(error))
            return False
        return True

    def _is_called_off(self) -> Callable[[], bool]:
        def is_called_off() -> bool:
            self._waiting()
            return self.inbox.has_next

        return now_and_then(POLL_SECONDS, is_called_off)


def _names(members: Sequence[Sequence[Any]]) -> list[tuple[str, int]]:
    """Pod uid and place of each."""
    return [(server, worker) for server, worker, *_ in members]
