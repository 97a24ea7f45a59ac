"""Which server a request goes to, and which request gets a place that has become free. No I/O.

A server gets at most a number of samples at a time, and no more tokens than its cache holds: of what does not fit it would forget keys and values
and compute them again. A request counts with its prompt, and with half the mean length of earlier responses for each sample, since a response grows
while it is held. Of the servers with room, the one gets it whose cache is filled least. An idle server takes any request.

Requests wait in the order in which they came, and one that gets a place wakes nobody else. Of many places that are free at once, a few are given in
each turn of the event loop, since whoever gets one sends its request in the next. While requests are held back, they wait by their priorities
(PriorityEvent).
"""

import asyncio
from collections import deque
from dataclasses import dataclass

AT_ONCE = 16
"""Places that are given in a turn of the loop. To send a request takes about half a millisecond, in four turns, so as many others are in the middle
of it."""
REMEMBERED = 1000
"""Responses over which their mean length is taken, about."""
WOKEN_AT_ONCE = 16
"""Tasks that are woken in a turn of the event loop."""
Priority = tuple[int, int]
"""Position of the prompt in the data, number of the sample in its group: what began earlier has the lower one, and goes first."""


@dataclass(eq=False, slots=True)
class LoadedServer:
    """What one server holds."""

    cache_tokens: int = 0
    """Tokens whose keys and values fit into its cache; 0: not known."""
    samples: int = 0
    tokens: float = 0.0

    @property
    def filled(self) -> float:
        """The part of its cache that is in use; without its size, a number that compares."""
        return self.tokens / (self.cache_tokens or 1)


@dataclass(slots=True)
class Home:
    """Of one trajectory: the server that holds the keys and values of its turns so far."""

    server: LoadedServer | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes of a server, from its reservation to its release."""

    samples: int
    tokens: float


@dataclass(frozen=True, slots=True)
class _Waiting[S: LoadedServer]:
    need: Need
    home: Home
    place: asyncio.Future[S | None]


class Slots[S: LoadedServer]:
    """The places of all servers. Used by tasks of one event loop."""

    def __init__(self, samples: int) -> None:
        """`samples`: most that one server gets at a time."""
        self._limit = samples
        self._servers: dict[S, None] = {}
        self._waiting: deque[_Waiting[S]] = deque()
        self._interrupted, self._left = False, AT_ONCE
        self._mean, self._answered = 0.0, 0

    def add(self, server: S) -> None:
        self._servers[server] = None
        self._grant()

    def remove(self, server: S) -> None:
        """It gets no requests any more; what it has is released as ever."""
        self._servers.pop(server, None)

    def need(self, prompt: int, samples: int) -> Need:
        """Of a request for so many responses to a prompt of so many tokens."""
        return Need(samples, prompt + samples * self._mean / 2)

    def answered(self, length: int) -> None:
        """A response has so many tokens."""
        self._answered = min(self._answered + 1, REMEMBERED)
        self._mean += (length - self._mean) / self._answered

    async def reserve(self, need: Need, home: Home) -> S | None:
        """Wait for a place, at `home` if that has one, which becomes its server. None once interrupted."""
        if self._interrupted:
            return None
        waiting: _Waiting[S] = _Waiting(need, home, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._grant()
        try:
            return await waiting.place
        except asyncio.CancelledError:
            granted = waiting.place.done() and not waiting.place.cancelled()
            server = waiting.place.result() if granted else None
            if server:
                self.release(server, need)
            raise

    def release(self, server: S, need: Need) -> None:
        server.samples -= need.samples
        server.tokens -= need.tokens
        self._grant()

    def interrupt(self) -> None:
        """Nobody gets a place until `resume`: who waits, and who comes, gets None."""
        self._interrupted = True
        while self._waiting:
            place = self._waiting.popleft().place
            if not place.done():
                place.set_result(None)

    def resume(self) -> None:
        self._interrupted = False

    def _grant(self) -> None:
        """Give places to those who wait longest, as far as there are any and this turn of the loop allows."""
        while self._waiting and self._left:
            first = self._waiting[0]
            if not first.place.done():
                server = self._choose(first.need, first.home)
                if server is None:
                    return
                self._give(first, server)
            self._waiting.popleft()

    def _give(self, first: _Waiting[S], server: S) -> None:
        server.samples += first.need.samples
        server.tokens += first.need.tokens
        first.home.server = server
        first.place.set_result(server)
        if self._left == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._left -= 1

    def _next_turn(self) -> None:
        self._left = AT_ONCE
        self._grant()

    def _choose(self, need: Need, home: Home) -> S | None:
        free = [s for s in self._servers if self._has_room(s, need)]
        return next((s for s in free if s is home.server), min(free, key=lambda s: s.filled, default=None))

    def _has_room(self, server: S, need: Need) -> bool:
        if not server.samples:
            return True
        fits = not server.cache_tokens or server.tokens + need.tokens <= server.cache_tokens
        return fits and server.samples + need.samples <= self._limit


class PriorityEvent:
    """Like asyncio.Event, which wakes its waiters in the order in which they came. It begins cleared.

    Samples that began first get the free slots of the servers first, because a step may have to wait for them. Many are not woken all in one turn of
    the event loop, in which nobody else would be served.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[tuple[Priority, asyncio.Future[None]]] = []

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = sorted(self._waiting, key=lambda waiter: waiter[0]), []
        _wake(deque(future for _, future in waiting))

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, priority: Priority) -> None:
        """Returns while the event is set."""
        while not self._is_set:  # it may be cleared again before a waiting task has run
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((priority, future))
            await future


def _wake(waiting: deque[asyncio.Future[None]]) -> None:
    for _ in range(min(WOKEN_AT_ONCE, len(waiting))):
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
    if waiting:
        asyncio.get_running_loop().call_soon(_wake, waiting)
