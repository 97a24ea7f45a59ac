"""Pods that were deleted and do not end, although their nodes answer. The gang continues without them (see model/ordinals.py)."""

from collections.abc import Iterable, Sequence

from rljob_api import reasons
from rljob_api.status import JobStatus, StuckPod
from rljob_operator.cache.nodes import OUT_OF_SERVICE
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_stuck
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.times import stamp

MOST = 8
"""Stuck pods that the status names."""


def report_stuck_pods(s: Snapshot, status: JobStatus) -> Change:
    """Names them in the status, and in one event each."""
    limit = s.lifecycle.node_loss_seconds
    stuck = sorted((p for p in s.pods if p.lost_since is None and is_stuck(p, limit, s.now)), key=lambda p: p.name)
    named = [_stuck(pod) for pod in stuck[:MOST]]
    if named == status.stuck_pods:
        return Change(status)
    known = {pod.uid for pod in status.stuck_pods}
    news = tuple(Event("Warning", reasons.POD_STUCK, _sentence(pod)) for pod in named if pod.uid not in known)
    return Change(set_(status, stuck_pods=named), news)


def stuck_pods(stuck: Sequence[StuckPod]) -> str:
    """A sentence about these pods; empty: there are none."""
    others = "; others do not end either" if len(stuck) > 1 else ""
    return _sentence(stuck[0]) + others if stuck else ""


def _sentence(stuck: StuckPod) -> str:
    where = f" on node {stuck.node}" if stuck.node else ""
    return f"pod {stuck.pod}{where} {stuck.why}"


def _stuck(pod: Pod) -> StuckPod:
    since = stamp(pod.delete_by or 0.0)
    return StuckPod(pod=pod.name, uid=pod.uid, node=pod.node, since=since, why=_why(pod, since))


def _why(pod: Pod, since: str) -> str:
    if pod.running:
        action = f"delete it by force, or taint the node {OUT_OF_SERVICE}"
        return f"should have ended at {since} and its container still runs: the process or its node hangs; {action}"
    if pod.finalizers:
        return (
            f"has ended, and since {since} is kept by {_finalizers(pod.finalizers)}, whose controller has to remove it"
        )
    return (
        f"should have ended at {since} and its kubelet does not let it go: look at its volumes, or delete it by force"
    )


def _finalizers(names: Iterable[str]) -> str:
    first, *others = names
    return f"finalizers {first} and {', '.join(others)}" if others else f"finalizer {first}"
