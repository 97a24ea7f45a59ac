"""Nodes that a job avoids, from its status: failures point at them, or their owner wants them to be left. What makes them so: policies/blame.py and
policies/nodes.py."""

from collections.abc import Iterator, Mapping
from itertools import islice

from rljob_api.status import JobStatus, NodeStatus
from rljob_operator.times import is_ahead, seconds

REMEMBERED_SECONDS = 3600.0
"""Seconds for which a failure that points at a node is remembered, and for which the node is avoided after the last one."""
MOST_NODES = 64
"""Nodes in a status, at most."""


def excluded(status: JobStatus, now: float) -> frozenset[str]:
    """Nodes to which none of the job's pods should go. `now`: seconds since the epoch."""
    return frozenset(n.node for n in status.nodes if n.state == "excluded" and (n.quarantine or is_remembered(n, now)))


def is_remembered(entry: NodeStatus, now: float) -> bool:
    """Whether the node's failures still count."""
    return is_ahead(seconds(entry.until), REMEMBERED_SECONDS, now)


def is_bad(entry: NodeStatus, limit: int) -> bool:
    """Whether the job should leave the node. `limit`: spec.scheduling.excludeAfterFailures."""
    return bool(entry.quarantine) or 0 < limit <= len(entry.failures)


def observed(status: JobStatus, quarantined: Mapping[str, str], now: float) -> list[NodeStatus]:
    """The entries of the status, with what is known of their nodes now, and new ones for quarantined nodes. `quarantined`: why, by node."""
    return list(islice(_observed(status, quarantined, now), MOST_NODES))


def _observed(status: JobStatus, quarantined: Mapping[str, str], now: float) -> Iterator[NodeStatus]:
    known = {entry.node for entry in status.nodes}
    for entry in status.nodes:
        remembered = {} if is_remembered(entry, now) else {"failures": [], "cause": "", "until": ""}
        seen = entry.model_copy(update={**remembered, "quarantine": quarantined.get(entry.node, "")})
        if seen.failures or seen.quarantine:
            yield seen
    yield from (NodeStatus(node=node, quarantine=why) for node, why in sorted(quarantined.items()) if node not in known)
