"""Why pods did not get onto their assigned nodes: the reasons of all nodes together, so that the message does not change with each node."""

import re
from collections import Counter
from collections.abc import Iterable

from rljob_api.sizing.layout import required_pods
from rljob_api.status import JobStatus, PlacementStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.schedulers.builtin.request import EXCLUDED_SECONDS

LONGEST, MOST = 200, 3
"""Longest reason, in characters, and most reasons in a message."""
SILENT = "the scheduler does not say why"
ALL_NODES = re.compile(r"0/\d+ nodes are available: (.*?)\.( |$)")
"""The scheduler's message, in which it counts the nodes by why they are out."""
COUNTED = re.compile(r"\d+ (.+?)(?=, \d+ |$)")
"""One reason in it, behind its count."""
ON_NO_NODE = re.compile(r"0/\d+ nodes are available: (\D.*?)\.( |$)")
"""The scheduler's message about a pod that fits no node at all, for example because its claim does not exist: it has no counts."""
PINNED = re.compile(r"node affinity/selector|prefilter result|didn't satisfy plugin")
"""Reasons that it gives for every node but the one that the pod is pinned to."""


def refusal_reason(unschedulable: str) -> str:
    """Why the node did not take one pod, from the scheduler's message about it."""
    listed = ALL_NODES.match(unschedulable)
    found = COUNTED.findall(listed[1]) if listed else []
    own = [one for one in found if not PINNED.search(one)] or found or [unschedulable or SILENT]
    return ", ".join(sorted(set(own)))[:LONGEST]


def refusal_reasons(placement: PlacementStatus, refused: Iterable[Pod] = ()) -> str:
    """Reasons for which nodes are excluded, and those of `refused` pods, in one text; empty: there are none."""
    avoided = {excluded.cause for excluded in placement.excluded if excluded.cause}
    found = sorted(avoided | {refusal_reason(pod.unschedulable) for pod in refused})
    return "; ".join([*found[:MOST], *(["and others"] if found[MOST:] else [])])


def refusal_message(s: Snapshot, status: JobStatus) -> str:
    """Why nodes have recently refused pods, in one sentence. Empty: none has, the whole gang is on nodes, or something else is in the way now."""
    placement = status.placement
    if placement is None or placement.problem or placement.unschedulable or on_nodes(s, status):
        return ""
    why = refusal_reasons(placement)
    return f"in the last {EXCLUDED_SECONDS / 60:.0f} minutes nodes refused pods: {why}" if why else ""


def is_refused(pod: Pod) -> bool:
    """Whether the scheduler's message is about the pod's node, so that the next one may be about another."""
    return bool(pod.unschedulable) and not ON_NO_NODE.match(pod.unschedulable)


def on_nodes(s: Snapshot, status: JobStatus) -> bool:
    """Whether every pod of the gang is on a node."""
    spec = s.spec_of(status.attempt)
    there = Counter(p.role for p in s.pods if p.node and not p.deleting)
    return spec is not None and all(there[role] >= count for role, count in required_pods(spec).items())
