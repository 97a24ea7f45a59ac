"""How much of the gateway's memory each client may have: bodies that are read, requests that wait or may be repeated, results and samples."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

MOST_HELD, MOST_OF_CLIENT = 512 * 2**20, 384 * 2**20
"""Bytes of all clients, and of one."""
SMALL, SPARE = 4096, 16 * 2**20
"""A request of so many bytes may use a little more: it may be the optimizer step that frees the rest."""


class BusyError(RuntimeError):
    """The client has to try again later."""


class MemoryBudget:
    """Bytes by client."""

    def __init__(self, kept: Callable[[], Mapping[str, int]]) -> None:
        """`kept`: what clients have, by their names."""
        self._kept, self._taken = kept, Counter[str]()

    @contextmanager
    def taking(self, client: str, size: int) -> Iterator[None]:
        """Room for what is read now; what is kept of it counts before this ends. Raises BusyError."""
        held = self._taken + Counter(self._kept())
        spare = SPARE if size <= SMALL else 0
        if size and (held[client] + size > MOST_OF_CLIENT + spare or held.total() + size > MOST_HELD + spare):
            raise BusyError(
                f"this client has {held[client]} bytes of requests and results here, and all clients have {held.total()}: "
                f"{MOST_OF_CLIENT} and {MOST_HELD} are the most"
            )
        self._taken[client] += size
        try:
            yield
        finally:
            self._taken[client] -= size
