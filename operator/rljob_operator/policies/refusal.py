"""Why pods did not get onto the nodes that were chosen for them: those of all nodes together, so that what is said does not change with each."""

import re
from collections import Counter
from collections.abc import Iterable

from rljob_api.sizing.layout import required_pods
from rljob_api.status import JobStatus, PlacementStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.schedulers.builtin.request import EXCLUDED_SECONDS

LONGEST, MOST = 200, 3
"""Characters of a reason, and reasons in a sentence."""
SILENT = "the scheduler does not say why"
ALL_NODES = re.compile(r"0/\d+ nodes are available: (.*?)\.( |$)")
"""The scheduler's message: how many nodes are out for what."""
COUNTED = re.compile(r"\d+ (.+?)(?=, \d+ |$)")
ON_NO_NODE = re.compile(r"0/\d+ nodes are available: (\D.*?)\.( |$)")
"""What it says of a pod that fits nowhere, such as one whose claim does not exist. Where nodes differ it counts them instead."""
PINNED = re.compile(r"node affinity/selector|prefilter result|didn't satisfy plugin")
"""What it says of every node but the one that the pod is pinned to."""


def refusal_reason(unschedulable: str) -> str:
    """Of one pod, from the scheduler's message, without counts."""
    listed = ALL_NODES.match(unschedulable)
    found = COUNTED.findall(listed[1]) if listed else []
    own = [one for one in found if not PINNED.search(one)] or found or [unschedulable or SILENT]
    return ", ".join(sorted(set(own)))[:LONGEST]


def refusal_reasons(placement: PlacementStatus, refused: Iterable[Pod] = ()) -> str:
    """For which nodes are avoided, and those of `refused` pods: the first ones by name. Empty: there is none."""
    avoided = {excluded.cause for excluded in placement.excluded if excluded.cause}
    found = sorted(avoided | {refusal_reason(pod.unschedulable) for pod in refused})
    return "; ".join([*found[:MOST], *(["and others"] if found[MOST:] else [])])


def refusal(s: Snapshot, status: JobStatus) -> str:
    """In one sentence; empty: every pod of the gang is on a node, no node has refused one lately, or something else keeps them from nodes now."""
    placement = status.placement
    if placement is None or placement.problem or placement.unschedulable or on_nodes(s, status):
        return ""
    why = refusal_reasons(placement)
    return f"in the last {EXCLUDED_SECONDS / 60:.0f} minutes nodes refused pods: {why}" if why else ""


def is_refused(pod: Pod) -> bool:
    """Whether the scheduler speaks of a node: its next message may be about another node, for another reason."""
    return bool(pod.unschedulable) and not ON_NO_NODE.match(pod.unschedulable)


def on_nodes(s: Snapshot, status: JobStatus) -> bool:
    """Whether every pod of the gang is on a node."""
    spec = s.spec_of(status.attempt)
    there = Counter(p.role for p in s.pods if p.node and not p.deleting)
    return spec is not None and all(there[role] >= count for role, count in required_pods(spec).items())
