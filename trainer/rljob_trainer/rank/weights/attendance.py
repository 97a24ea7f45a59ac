"""Which servers take part in an update, from the lines of their workers (messages.py), and why others do not."""

import time
from collections.abc import Callable, Mapping, Sequence

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.door import is_gone
from rljob_trainer.wire.weights.messages import GIVEN_UP, Line, Progress
from rljob_trainer.wire.weights.protocol import Member

SILENT = "worker {} neither received, loaded nor waited for a bucket in time"
GONE = "worker {} has died"
BEHIND = "it could not be connected with the others: {}"


class Attendance:
    """Servers are left out by `leave_out` only, so between two calls the same ones take part."""

    def __init__(self, servers: Mapping[str, Sequence[Member]], clock: Callable[[], float] = time.monotonic) -> None:
        """`servers`: by pod."""
        self.live = dict(servers)
        self.failed: dict[str, str] = {}
        self._clock = clock
        self._message = -1
        self._lines: dict[str, Line] = {}
        self._signs = {member.name: (-1, clock()) for member in self.members}
        """By worker: the newest sign of life, and when it was new."""

    @property
    def members(self) -> list[Member]:
        return [member for members in self.live.values() for member in members]

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    def see(self, message: int, lines: Mapping[str, Line]) -> None:
        """`message`: number of the newest. `lines`: by worker."""
        now = self._clock()
        self._message, self._lines = message, dict(lines)
        for worker, line in lines.items():
            if line.sign != self._signs[worker][0]:
                self._signs[worker] = line.sign, now

    def all(self, state: Progress) -> bool:
        """Whether all workers are in a state, concerning the newest message."""
        return all(self._state(member) in _at_least(state) for member in self.members)

    def others(self, state: Progress) -> list[str]:
        """Pods with a worker that is not in that state."""
        return [p for p, members in self.live.items() if any(self._state(m) not in _at_least(state) for m in members)]

    def broken(self) -> bool:
        """Whether a worker has failed or refused, or is silent."""
        return any(self._state(m) == Progress.FAILED or self._why_not(m) for m in self.members)

    def leave_out(self) -> bool:
        """Leave out servers with a worker that has refused, is silent, or has died. Returns whether there are any."""
        reasons = {pod: self._reason(members, self._why_not) for pod, members in self.live.items()}
        if not any(reasons.values()):
            reasons = {pod: self._reason(members, self._death) for pod, members in self.live.items()}
        return self._without(reasons)

    def leave_out_others(self, state: Progress) -> None:
        """Leave out servers with a worker that is not in a state; all, if all are in it."""
        reasons = (self._lines[m.name].reason for m in self.members if self._state(m) == Progress.FAILED)
        why = BEHIND.format(next(reasons, "the transfer did not end"))
        self._without(dict.fromkeys(self.others(state) or self.live, why))

    def _without(self, reasons: Mapping[str, str]) -> bool:
        lost = {pod: why for pod, why in reasons.items() if why}
        for pod, why in lost.items():
            self.failed[pod] = why
            del self.live[pod]
        return bool(lost)

    def _reason(self, members: Sequence[Member], why: Callable[[Member], str]) -> str:
        """That of the first worker with one, but causes before what follows from them."""
        reasons = [reason for member in members if (reason := why(member))]
        return min(reasons, key=lambda reason: reason == GIVEN_UP, default="")

    def _why_not(self, member: Member) -> str:
        line = self._lines.get(member.name)
        if line and line.state == Progress.REFUSED:
            return line.reason
        if self._state(member) == Progress.DONE:
            return ""  # after the last message it has nothing more to show
        silent = self._clock() > self._signs[member.name][1] + protocol.SILENT_SECONDS
        return SILENT.format(member.worker) if silent else ""

    def _death(self, member: Member) -> str:
        return GONE.format(member.worker) if is_gone(member.host, member.port) else ""

    def _state(self, member: Member) -> Progress | None:
        line = self._lines.get(member.name)
        return line.state if line and line.message == self._message else None


def _at_least(state: Progress) -> tuple[Progress, ...]:
    return (Progress.READY, Progress.DONE) if state == Progress.READY else (state,)
