"""Whose a child is, and whether it is as it should be."""

from collections.abc import Mapping
from typing import Any

from rljob_api.status import RLJobMeta


def controls(job: RLJobMeta, live: Mapping[str, Any]) -> bool:
    owners = live["metadata"].get("ownerReferences", [])
    return any(o.get("controller") and o["uid"] == job.uid for o in owners)


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is so already; what the API server or others added does not matter."""
    if live == wanted:  # far faster than to look at each part
        return True
    if isinstance(wanted, dict):
        return isinstance(live, Mapping) and all(covers(live.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    return bool(live == wanted) or (live is None and wanted in ("", False))
