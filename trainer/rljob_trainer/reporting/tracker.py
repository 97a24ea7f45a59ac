"""A service that shows the metrics of many runs."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

GOODBYE_SECONDS = 60.0
"""The clients have no limit of their own while their service is away. Nobody trains meanwhile, and a driver that failed has not said why."""

RunStatus = Literal["succeeded", "drained", "failed"]
"""drained: another attempt continues, perhaps after a suspension."""

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One run per job, over all attempts. A step that is trained again has a second point there."""

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Returns at once."""

    def close(self, end: RunStatus) -> None:
        """Show how the attempt ended, and send what is left, as long as that takes no longer than GOODBYE_SECONDS: all of it is in
        metrics.jsonl as well."""


def finish(run: Callable[[], object], service: str) -> None:
    """Lets a client finish its run, as long as that takes no longer than GOODBYE_SECONDS."""
    rest = threading.Thread(target=run, daemon=True)
    rest.start()
    wait_for_last_points(rest, service)


def wait_for_last_points(sender: threading.Thread, service: str) -> None:
    """Until `sender` has sent them, or GOODBYE_SECONDS are over."""
    sender.join(GOODBYE_SECONDS)
    if sender.is_alive():
        log.warning("%s may lack the last points: not all were sent within %g s", service, GOODBYE_SECONDS)
