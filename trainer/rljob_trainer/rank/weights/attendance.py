"""Which servers take part in an update, from the lines of their workers (messages.py), and why others do not."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import NamedTuple

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.door import knock
from rljob_trainer.wire.weights.messages import GIVEN_UP, MessageState, WorkerPosition
from rljob_trainer.wire.weights.protocol import ServerWorker

SILENT = "worker {} neither received, loaded nor waited for a bucket in time"
GONE = "worker {} has died"
MOST_KNOCKS = 64
"""Workers that are knocked at at the same time."""
BEHIND = "it could not be connected with the others: {}"


class LossCause(IntEnum):
    """Why a server is left out. What comes first may be the cause of what comes after it."""

    REFUSED = 0
    GONE = 1
    SILENT = 2
    BEHIND = 3
    GIVEN_UP = 4


class Loss(NamedTuple):
    """Of a server. The least of several is the one to report."""

    cause: LossCause
    why: str


def losses(senders: Iterable[Mapping[str, Loss]]) -> dict[str, str]:
    """Pod -> why it is lost, from what each sender knows of that."""
    earliest: dict[str, Loss] = {}
    for pods in senders:
        earliest |= {pod: min(loss, earliest.get(pod, loss)) for pod, loss in pods.items()}
    return {pod: loss.why for pod, loss in earliest.items()}


class Attendance:
    """Servers are left out by `leave_out` only, so between two calls the same ones take part."""

    def __init__(
        self, servers: Mapping[str, Sequence[ServerWorker]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`servers`: by pod."""
        self.live = dict(servers)
        self.failed: dict[str, Loss] = {}
        self._clock = clock
        self._message = -1
        self._concerned: frozenset[ServerWorker] = frozenset(self.members)
        self._lines: dict[str, WorkerPosition] = {}
        self._signs = {member.name: (-1, clock()) for member in self.members}
        """By worker: the newest sign of life, and when it was new."""

    @property
    def members(self) -> list[ServerWorker]:
        return [member for members in self.live.values() for member in members]

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    def see(
        self, message: int, lines: Mapping[str, WorkerPosition], concerned: Sequence[ServerWorker] | None = None
    ) -> None:
        """`message`: number of the newest. `lines`: by worker. `concerned`: workers that the message asks to do something; None: all."""
        now = self._clock()
        self._message, self._lines = message, dict(lines)
        self._concerned = frozenset(self.members if concerned is None else concerned)
        for worker, line in lines.items():
            if line.sign != self._signs[worker][0]:
                self._signs[worker] = line.sign, now

    def all(self, state: MessageState) -> bool:
        """Whether all workers that the newest message concerns are in a state about it."""
        return not self.others(state)

    def others(self, state: MessageState) -> list[str]:
        """Pods with one of those workers that is not in that state."""
        return self._pods(frozenset(m for m in self._concerned if self._state(m) not in _at_least(state)))

    def broken(self) -> bool:
        """Whether a worker has failed or refused, or is silent."""
        return any(self._state(m) == MessageState.FAILED or self._why_not(m) for m in self.members)

    def leave_out(self) -> bool:
        """Leave out servers with a worker that has refused, is silent, or has died. Returns whether there are any."""
        return self._without(self._lost(self._why_not)) or self._without(self._lost(self._deaths().get))

    def leave_out_others(self, state: MessageState) -> None:
        """Leave out servers with a worker that the newest message concerns, and that is not in a state; all of these, if all are in it."""
        reasons = (self._lines[m.name].reason for m in self.members if self._state(m) == MessageState.FAILED)
        why = BEHIND.format(next(reasons, "the transfer did not end"))
        behind = self.others(state) or self._pods(self._concerned)
        self._without(dict.fromkeys(behind, Loss(LossCause.BEHIND, why)))

    def _pods(self, workers: frozenset[ServerWorker]) -> list[str]:
        """Of servers that take part."""
        return [pod for pod, members in self.live.items() if not workers.isdisjoint(members)]

    def _without(self, lost: Mapping[str, Loss]) -> bool:
        self.failed |= lost
        self.live = {pod: members for pod, members in self.live.items() if pod not in lost}
        return bool(lost)

    def _lost(self, loss: Callable[[ServerWorker], Loss | None]) -> dict[str, Loss]:
        """By pod, of those with a worker that has one."""
        by_pod = {pod: list(filter(None, map(loss, members))) for pod, members in self.live.items()}
        return {pod: min(of_workers) for pod, of_workers in by_pod.items() if of_workers}

    def _why_not(self, member: ServerWorker) -> Loss | None:
        line = self._lines.get(member.name)
        if line and line.state == MessageState.REFUSED:
            return Loss(LossCause.GIVEN_UP if line.reason == GIVEN_UP else LossCause.REFUSED, line.reason)
        if self._state(member) == MessageState.DONE:
            return None  # after the last message it has nothing more to show
        silent = self._clock() > self._signs[member.name][1] + protocol.SILENT_SECONDS
        return Loss(LossCause.SILENT, SILENT.format(member.worker)) if silent else None

    def _deaths(self) -> dict[ServerWorker, Loss]:
        """All are knocked at together: each that is silent takes seconds."""
        members = self.members
        with ThreadPoolExecutor(MOST_KNOCKS) as pool:
            states = pool.map(lambda member: knock(member.host, member.port), members)
            return {
                m: Loss(LossCause.GONE, GONE.format(m.worker))
                for m, state in zip(members, states, strict=True)
                if state == "gone"
            }

    def _state(self, member: ServerWorker) -> MessageState | None:
        line = self._lines.get(member.name)
        return line.state if line and line.message == self._message else None


def _at_least(state: MessageState) -> tuple[MessageState, ...]:
    return (MessageState.READY, MessageState.DONE) if state == MessageState.READY else (state,)
