"""Whether the workers of a server still exist while it answers a request. Its engine waits for all of them, also for those in pods that are lost."""

import time
from collections.abc import Callable, Sequence

from rljob_trainer.rank.weights.attendance import GONE
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.door import knock
from rljob_trainer.wire.weights.protocol import ServerWorker

UNREACHABLE = "worker {} cannot be reached"


class Watch:
    """The workers of one server, from now on."""

    def __init__(self, workers: Sequence[ServerWorker], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._clock, self._reached = workers, clock, clock()

    def lost(self) -> str:
        """Why the server will not answer: a worker has died, or was not reached for SILENT_SECONDS. Empty: nothing says so."""
        for member in self._workers:
            state = knock(member.host, member.port)
            if state == "gone":
                return GONE.format(member.worker)
            if state == "silent":
                late = self._clock() > self._reached + protocol.SILENT_SECONDS
                return UNREACHABLE.format(member.worker) if late else ""
        self._reached = self._clock()
        return ""
