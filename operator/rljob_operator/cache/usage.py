"""What any pod of the cluster takes of which node."""

from dataclasses import dataclass
from typing import Any

from rljob_api.quantity import Resources
from rljob_placement.cluster import occupied, requests


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a pod that is on a node; of others, and of those that have ended, nothing is kept."""

    node: str = ""
    requests: Resources | None = None

    def shrinks(self, after: "Usage") -> bool:
        """Whether a waiting job may have room now."""
        return self.requests is not None and after.requests is None


def parse_usage(pod: dict[str, Any]) -> Usage:
    node = occupied(pod)
    return Usage(node, requests(pod["spec"])) if node else Usage()
