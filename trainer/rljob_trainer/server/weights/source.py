"""One sender of an update, as a worker hears it: its messages, the group that it makes, and the buckets that come through that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rljob_trainer.wire.weights import chain, ipc, nccl
from rljob_trainer.wire.weights.door import Door, Membership
from rljob_trainer.wire.weights.messages import GIVEN_UP, AbandonedError, Inbox
from rljob_trainer.wire.weights.polling import CalledOffError, now_and_then
from rljob_trainer.wire.weights.protocol import Member
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
    """A group that lives on between updates."""

    home: RemoteStore
    group: str
    end: WorkerEnd

    def close(self) -> None:
        self.end.close()
        self.home.close()


class Source:
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
        self.connection = connection if isinstance(connection, Connection) else None
        self._home = connection.home if isinstance(connection, Connection) else connection
        self.inbox = Inbox(self._home, update, f"{place.server}/{place.worker}")
        self._received = 0
        """Buckets."""

    def join(self, message: dict[str, Any]) -> None:
        """Become a member of a group. Raises AbandonedError when this worker is not named."""
        group, members = message["group"], [Member(*member) for member in message["members"]]
        names = [member[:2] for member in members]
        if (self._place.server, self._place.worker) not in names:
            raise AbandonedError(GIVEN_UP)
        if message["made"] and not (self.connection and self.connection.group == group):
            self.inbox.failed("this worker is not connected")
            return
        self.inbox.ready()
        place = names.index((self._place.server, self._place.worker))
        if message["made"] or self._tried(lambda: self._connect(group, members, place)):
            self.inbox.done()

    def receive(self, message: dict[str, Any], payload: Tensor, meanwhile: Callable[[], None]) -> bool:
        """Receive a bucket. `meanwhile` is called when that is under way. Returns whether it is there, for the first time."""
        assert self.connection, "a group comes before its buckets"
        end = self.connection.end
        if not self._tried(lambda: end.receive(payload, message["transport"])):
            return False
        self.inbox.ready()
        meanwhile()
        if not self._tried(lambda: end.wait(self._is_called_off())):
            return False
        self.inbox.done()
        is_new = bool(message["bucket"] == self._received)
        self._received += is_new
        return is_new

    def close(self) -> None:
        """Leave the sender."""
        self._leave_group()
        self._home.close()

    def _leave_group(self) -> None:
        if self.connection:
            self.connection.end.close()
        self.connection = None

    def _connect(self, group: str, members: Sequence[Member], place: int) -> None:
        self._leave_group()
        own = Membership(self._home, group, members, place, self._place.door)
        end = self._end_cls(own, self._is_called_off())
        self.connection = Connection(self._home, group, end)

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
