"""The time in which a gateway could hear its clients. While its process stood still, or read its journals, nobody was silent, and nobody could fetch
a result."""

import time

LONGEST_SECONDS = 10.0
"""Between two marks; the rest is not counted."""


class ListeningClock:
    """`seconds` begins at 0, and stands still where the process did."""

    def __init__(self) -> None:
        self._before, self._marked = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + min(time.monotonic() - self._marked, LONGEST_SECONDS)

    def mark(self) -> None:
        """It listens now."""
        self._before, self._marked = self.seconds, time.monotonic()
