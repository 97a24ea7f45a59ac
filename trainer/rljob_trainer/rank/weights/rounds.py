"""Something that many servers do at the same time, and what becomes of those that fail."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

from rljob_trainer.rank.weights.call import ReplicaError

WATCH_SECONDS = 2.0
"""Interval at which one looks after servers that have not answered."""
NAMED_SECONDS = 10.0
"""Servers that take longer for one step of an update are named."""
MOST_NAMED = 5


def _not_lost(_: str) -> str:
    return ""


class Round[T](AbstractContextManager["Round[T]"]):
    """The servers of one update: those that still take part, and why others do not. An exception inside abandons the update at all of them."""

    def __init__(self, parts: Mapping[str, T], abandon: Callable[[T], None], awaits: Callable[[str], None]) -> None:
        """`parts`: by pod, what calls about its server are made on. `abandon`: ends the update at one that has failed."""
        self._abandon, self._awaits = abandon, awaits
        self.live = dict(parts)
        self.failed: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix="publish")
        self._looking = ThreadPoolExecutor(max(1, len(parts)), thread_name_prefix="watch")
        self._running: dict[str, Future[None]] = {}

    def run(self, work: Callable[[T], None], what: str, lost: Callable[[str], str] = _not_lost) -> None:
        """Wait for all servers, and drop those that failed. Names those that take long.

        Args:
            what: that each server does, for messages
            lost: says of a server that takes long why it will not answer; empty: that is not known
        """
        self._running = {pod: self._pool.submit(work, part) for pod, part in self.live.items()}
        for pod, why in self._wait(what, lost).items():
            self._running.pop(pod)
            self.drop(pod, why)
        for pod, future in self._running.items():
            try:
                future.result()
            except ReplicaError as error:
                self.drop(pod, str(error))
        self._running = {}

    def _wait(self, what: str, lost: Callable[[str], str]) -> dict[str, str]:
        """Returns when all have answered that will. Pod -> why, of the others."""
        late, given_up, is_named, began = dict(self._running), dict[str, str](), False, time.monotonic()
        while late:
            wait(late.values(), WATCH_SECONDS)
            late = {pod: future for pod, future in late.items() if not future.done()}
            given_up |= self._lost(late, lost)
            late = {pod: future for pod, future in late.items() if pod not in given_up}
            if late and not is_named and time.monotonic() - began >= NAMED_SECONDS:
                is_named = True
                self._awaits(f"{named([*late])} to {what}")
        if is_named:
            self._awaits("")
        return given_up

    def _lost(self, late: Mapping[str, Future[None]], lost: Callable[[str], str]) -> dict[str, str]:
        """Pod -> why, of those that are lost. All are looked after together: each that is silent takes seconds, in which others may answer."""
        reasons = dict(zip(late, self._looking.map(lost, late), strict=True))
        return {pod: why for pod, why in reasons.items() if why and not late[pod].done()}

    def drop(self, pod: str, why: str) -> None:
        """Have a server take part no longer."""
        self.failed[pod] = why
        self._pool.submit(self._abandon, self.live.pop(pod))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for future in self._running.values():
                future.cancel()
            wait(self._running.values())  # a connection is not for two threads
            for part in self.live.values():
                self._pool.submit(self._abandon, part)
        self._looking.shutdown(wait=False)
        self._pool.shutdown(wait=kind is not None)  # leaving a connection that hangs may take as long as a transfer


def named(pods: list[str]) -> str:
    """For a sentence."""
    more = f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
    return ", ".join(sorted(pods)[:MOST_NAMED]) + more
