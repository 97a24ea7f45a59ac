"""Policies that servers cannot have: the ranks say so at once (a snapshot is damaged, say), or some updates in a row show it. They are refused until
their files change, a server comes that was not asked, or some time has passed.
"""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

MOST_REFUSED = 3
"""Updates in a row that no server takes."""
REFUSED_SECONDS = 600.0
"""Then a policy is tried again: what was against it may have been a server's own trouble, which ended with its process and left its pod."""
TEMPORARY_SECONDS = 15.0
"""The same where the ranks could not read it, because of the volume's trouble or their machine's."""

FileStates = frozenset[tuple[str, int, int]]
"""Name, bytes and time of the last change of each file of a directory."""


@dataclass(frozen=True)
class _Refusal:
    """Why a policy is not sent any more, and for how long."""

    why: str
    files: FileStates
    servers: frozenset[str]
    """UIDs of those that there were."""
    until: float
    """By the monotonic clock."""

    def holds(self, policy: str, now: float) -> bool:
        """Whether the files are those that were refused, not long ago."""
        return now <= self.until and self.files == _files(policy)


class Refusals:
    """By policy, which is a directory."""

    def __init__(self) -> None:
        self._in_a_row = Counter[str]()
        self._refused = dict[str, _Refusal]()

    def count(self, policy: str) -> bool:
        """No server has got it by an update. Whether this was one too many."""
        self._in_a_row[policy] += 1
        return self._in_a_row[policy] >= MOST_REFUSED

    def taken(self, policy: str) -> None:
        """A server has it."""
        self._in_a_row.pop(policy, None)

    def begin(self) -> None:
        """Other ranks send: what was refused came perhaps of the last ones."""
        self._in_a_row.clear()
        self._refused.clear()

    def keep(self, policy: str, why: str, servers: Collection[str], seconds: float) -> None:
        """A policy is refused from now on, for so long at most. `servers`: UIDs of those that there are."""
        self._in_a_row.pop(policy, None)
        now = time.monotonic()
        self._refused = {name: refusal for name, refusal in self._refused.items() if refusal.holds(name, now)}
        self._refused[policy] = _Refusal(why, _files(policy), frozenset(servers), now + seconds)

    def why(self, policy: str, servers: Collection[str]) -> str | None:
        """Why a policy is refused. None: it is not. `servers`: UIDs of those that there are now."""
        refusal = self._refused.get(policy)
        if refusal is None or not servers or not refusal.servers.issuperset(servers):
            return None
        return refusal.why if refusal.holds(policy, time.monotonic()) else None


def _files(directory: str) -> FileStates:
    """Empty: it is gone."""
    try:
        states = [(file.name, file.stat()) for file in Path(directory).iterdir()]
    except OSError:
        return frozenset()
    return frozenset((name, state.st_size, state.st_mtime_ns) for name, state in states)
