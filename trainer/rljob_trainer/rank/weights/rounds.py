"""Something that many servers do at the same time, and what becomes of those that fail."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

from rljob_trainer.rank.weights.call import ReplicaError

NAMED_SECONDS = 10.0
"""Servers that take longer for one step of an update are named."""
MOST_NAMED = 5


class Round[T](AbstractContextManager["Round[T]"]):
    """The servers of one update: those that still take part, and why others do not. An exception inside abandons the update at all of them."""

    def __init__(self, parts: Mapping[str, T], abandon: Callable[[T], None], awaits: Callable[[str], None]) -> None:
        """`parts`: by pod, what calls about its server are made on. `abandon`: ends the update at one that has failed."""
        self._abandon, self._awaits = abandon, awaits
        self.live = dict(parts)
        self.failed: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix="publish")
        self._running: dict[str, Future[None]] = {}

    def run(self, work: Callable[[T], None], what: str) -> None:
        """Wait for all servers, and drop those that failed. Names those that take long. `what`: that each server does, for messages."""
        self._running = {pod: self._pool.submit(work, part) for pod, part in self.live.items()}
        _, late = wait(self._running.values(), NAMED_SECONDS)
        if late:
            self._awaits(f"{named([pod for pod, future in self._running.items() if future in late])} to {what}")
            wait(late)
            self._awaits("")
        for pod, future in self._running.items():
            try:
                future.result()
            except ReplicaError as error:
                self.drop(pod, str(error))
        self._running = {}

    def drop(self, pod: str, why: str) -> None:
        """Have a server take part no longer. Nothing must be running."""
        self.failed[pod] = why
        self._pool.submit(self._abandon, self.live.pop(pod))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for future in self._running.values():
                future.cancel()
            wait(self._running.values())  # a connection is not for two threads
            for part in self.live.values():
                self._pool.submit(self._abandon, part)
        self._pool.shutdown(wait=kind is not None)  # leaving a connection that hangs may take as long as a transfer


def named(pods: list[str]) -> str:
    """For a sentence."""
    more = f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
    return ", ".join(sorted(pods)[:MOST_NAMED]) + more
