"""Places for calls in processes: who gets one next, and how others wait for one."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager

from rljob_api.callbacks import never
from rljob_api.spec.common import MOST_PODS
from rljob_api.spec.processes import Autoscaling

SETTLING_SECONDS = 30.0
"""From the first process of a pod that connects to the last one."""


class Places[P]:
    """Whoever waits longest gets a place in the process of which the fewest are taken."""

    def __init__(self, room: Callable[[P], int], gone: Callable[[P], bool] = never):
        """`room`: places of a process. `gone`: whether it can take nothing any more."""
        self._room, self._gone = room, gone
        self._taken: dict[P, int] = {}
        """Places by process. Who wants one alone takes all, on top of those that others still have."""
        self._waiting: deque[tuple[asyncio.Future[P], bool]] = deque()
        """With whether each wants to be alone."""
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Processes."""
        return len(self._taken)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._taken))

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return sum(not given.done() for given, _ in self._waiting)

    def add(self, process: P) -> None:
        self._taken[process] = 0
        self._hand_out()

    def remove(self, process: P) -> None:
        del self._taken[process]
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise this in every `one` that waits now or later."""
        self._error = error
        self._hand_out()

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[P]:
        """A process with a place, once there is one. `alone`: once nothing else runs in it, and nothing else will until this has ended."""
        process = await self._given(alone)
        try:
            while alone and self._taken.get(process, 0) > self._wanted(process, alone):
                await self._changed.wait()
            yield process
        finally:
            self._release(process, alone)

    def _wanted(self, process: P, alone: bool) -> int:
        return self._room(process) if alone else 1

    async def _given(self, alone: bool) -> P:
        given: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, alone))
        self._hand_out()
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled() and not given.exception():
                self._release(given.result(), alone)
            raise

    def _release(self, process: P, alone: bool) -> None:
        if process in self._taken:
            self._count(process, -1, alone)
            self._wake()
            self._hand_out()

    def _count(self, process: P, calls: int, alone: bool) -> None:
        """So many calls more run in the process."""
        self._taken[process] += calls * self._wanted(process, alone)

    def _wake(self) -> None:
        """Those who want to be alone look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _hand_out(self) -> None:
        while self._waiting:
            given, alone = self._waiting[0]
            if self._error and not given.done():
                given.set_exception(self._error)
            elif not given.done():
                process = self._next()
                if process is None:
                    return
                self._count(process, 1, alone)
                given.set_result(process)
            self._waiting.popleft()

    def _next(self) -> P | None:
        """The process that the next call gets; None: it has to wait."""
        return self._least(self._taken)

    def _least(self, processes: Iterable[P]) -> P | None:
        """That of which the fewest places are taken, if it has room."""
        process = min((p for p in processes if not self._gone(p)), key=self._taken.__getitem__, default=None)
        return None if process is None or self._taken[process] >= self._room(process) else process


class PackedPlaces[P](Places[P]):
    """Whoever waits longest gets a place in the pod of the lowest ordinal that has room, so that those of the highest become free and can go. Among
    the pods that never go, calls are spread as without autoscaling."""

    def __init__(
        self,
        room: Callable[[P], int],
        gone: Callable[[P], bool],
        ordinal: Callable[[P], int],
        autoscaling: Autoscaling,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`ordinal`: of the pod that a process is in."""
        super().__init__(room, gone)
        self._ordinal, self._autoscaling, self._clock = ordinal, autoscaling, clock
        self._since = dict[int, float]()
        """When the first process of each pod came, by ordinal."""
        self._pods = dict[int, list[P]]()
        """Processes by ordinal, in this order."""
        self._calls = Counter[P]()

    @property
    def running(self) -> int:
        """Calls that have a place."""
        return self._calls.total()

    @property
    def busy(self) -> int:
        """One more than the highest ordinal of a pod in which a call runs; 0: none does."""
        return max((self._ordinal(process) + 1 for process, calls in self._calls.items() if calls), default=0)

    @property
    def calls_of_pod(self) -> int:
        """Calls that one pod can run: `callsPerReplica`, or what the processes of the largest pod have room for, once they have all come."""
        settled = (self._pods[i] for i, since in self._since.items() if self._clock() - since >= SETTLING_SECONDS)
        most = max((sum(self._room(process) for process in processes) for processes in settled), default=0)
        limit = self._autoscaling.calls_per_replica
        return min(limit, most or limit)

    def add(self, process: P) -> None:
        self._pods.setdefault(self._ordinal(process), []).append(process)
        self._since.setdefault(self._ordinal(process), self._clock())
        self._pods = dict(sorted(self._pods.items()))
        super().add(process)

    def remove(self, process: P) -> None:
        pod = self._pods[self._ordinal(process)]
        pod.remove(process)
        if not pod:
            del self._pods[self._ordinal(process)], self._since[self._ordinal(process)]
        del self._calls[process]
        super().remove(process)

    def _count(self, process: P, calls: int, alone: bool) -> None:
        self._calls[process] += calls
        super()._count(process, calls, alone)

    def _next(self) -> P | None:
        free = list[P]()
        for ordinal, processes in self._pods.items():
            if free and ordinal >= self._autoscaling.min_replicas:
                break
            if sum(self._calls[process] for process in processes) < self._autoscaling.calls_per_replica:
                best = self._least(processes)
                free += [best] if best is not None else []
        return self._least(free)


def ordinal(pod: str) -> int:
    """Of a pod of a StatefulSet, by its name. Of any other name, one that no pod has."""
    digits = pod.rpartition("-")[2]
    return min(int(digits), MOST_PODS) if digits.isdecimal() else MOST_PODS
