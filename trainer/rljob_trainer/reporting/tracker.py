"""A service that shows the metrics of many runs."""

from collections.abc import Mapping
from typing import Protocol

GOODBYE_SECONDS = 60.0
"""The clients have no limit of their own while their service is away. Nobody trains meanwhile, and a driver that failed has not said why."""


class Tracker(Protocol):
    """One run per job, over all attempts. A step that is trained again has a second point there."""

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Send what is left, as long as that takes no longer than GOODBYE_SECONDS: all of it is in metrics.jsonl as well."""
