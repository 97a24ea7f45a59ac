"""What the job does about nodes that failures point at, or that their owner wants to be left.

It leaves them if the whole gang has capacity elsewhere: between attempts, or at the end of a step if the owner wants it. Otherwise it uses them, and
says so. If there is capacity to leave some of them, those are the worst ones.
"""

from collections.abc import Iterator

from rljob_api import names, reasons
from rljob_api.status import JobStatus, NodeStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.avoided_nodes import REMEMBERED_SECONDS, excluded, is_bad, observed
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.times import seconds, stamp

RETRY = 60.0
"""Seconds between two looks for other nodes. No event says that some are free."""
STUCK_SECONDS = 300.0
"""Seconds after which a pod that another scheduler leaves unscheduled shows that the job cannot do without the nodes that it avoids."""


def nodes_to_leave(s: Snapshot) -> tuple[str, ...]:
    """Bad nodes, the worst first, for which the next decision needs to know whether the gang has capacity elsewhere (`Snapshot.refuge`)."""
    status = s.status
    if s.spec is None or status.outcome or status.suspended or status.wants_suspend(s.spec_suspend):
        return ()
    bad = sorted((e for e in observed(status, s.quarantined, s.now) if is_bad(e, _limit(s))), key=_badness)
    nodes = tuple(entry.node for entry in bad)
    return nodes if not is_open(status.attempt) or any(p.node in nodes for p in s.pods) else ()


def _badness(entry: NodeStatus) -> tuple[bool, int, bool, str]:
    """Sort key: first those that their owner wants to be left, then those with most failures, then those that the job has left already, so that it
    does not go back and forth between two that are alike."""
    return not entry.quarantine, -len(entry.failures), entry.state != "excluded", entry.node


def judge_nodes(s: Snapshot, status: JobStatus) -> Change:
    """Excludes bad nodes if the gang has capacity elsewhere, and forgets those that are good again."""
    if status.outcome:
        return Change(status)
    before = {entry.node: entry.state for entry in status.nodes}
    nodes = [_judged(s, status, entry) for entry in observed(status, s.quarantined, s.now)]
    events = tuple(_event(e) for e in nodes if e.state not in ("suspect", before.get(e.node)))
    due = [seconds(entry.until) for entry in nodes if entry.until]
    due += [s.now + RETRY] if any(is_bad(entry, _limit(s)) for entry in nodes) else []
    return Change(set_(status, nodes=nodes) if nodes != status.nodes else status, events, tuple(due))


def _judged(s: Snapshot, status: JobStatus, entry: NodeStatus) -> NodeStatus:
    if not is_bad(entry, _limit(s)):
        return entry.model_copy(update={"state": "suspect", "retry_at": ""})
    if entry.state == "excluded" and _is_stuck(s, status):
        return entry.model_copy(update={"state": "needed", "retry_at": stamp(s.now + REMEMBERED_SECONDS)})
    if s.refuge is None or (entry.node in s.refuge and s.now < seconds(entry.retry_at)):
        return entry
    return entry.model_copy(update={"state": "excluded" if entry.node in s.refuge else "needed"})


def _is_stuck(s: Snapshot, status: JobStatus) -> bool:
    """Whether the job's own scheduler, which knows more than capacities, finds no node for a pod that may not go to excluded ones."""
    spec = s.spec_of(status.attempt)
    if spec is None or spec.scheduling.assigns_nodes or is_open(status.attempt):
        return False
    return any(p.unschedulable and not p.deleting and p.created + STUCK_SECONDS <= s.now for p in s.pods)


def _limit(s: Snapshot) -> int:
    spec = s.spec_of(s.status.attempt)
    return spec.scheduling.exclude_after_failures if spec else 0


def _event(entry: NodeStatus) -> Event:
    if entry.state == "excluded":
        return Event("Warning", reasons.NODE_EXCLUDED, f"node {entry.node} is avoided: {why(entry)}")
    return Event("Warning", reasons.NODE_NEEDED, needed(entry))


def why(entry: NodeStatus) -> str:
    """What is wrong with a node, as the end of a sentence."""
    count = len(entry.failures)
    failures = f"{count} failure{'' if count == 1 else 's'} in an hour, the last: {entry.cause}" if count else ""
    return "; ".join(text for text in (entry.quarantine, failures) if text)


def needed(entry: NodeStatus) -> str:
    return f"node {entry.node} is used, since no others have capacity for the whole gang, in spite of: {why(entry)}"


def is_leaving(s: Snapshot, status: JobStatus) -> bool:
    """Whether the open attempt has to drain, so that the job can leave a node at the wish of its owner."""
    spec = s.spec_of(status.attempt)
    nodes = {entry.node for entry in status.nodes if entry.state == "excluded" and entry.quarantine}
    there = [pod for pod in s.pods if pod.node in nodes and not pod.deleting]
    if spec is None or not there:
        return False
    members = _members(status)
    return any(p.uid in members if names.is_model_role(p.role) else not spec.scheduling.assigns_nodes for p in there)


def _members(status: JobStatus) -> set[str]:
    """Uids of the open attempt's pods."""
    return {m.pod_uid for m in status.attempt.members} if status.attempt and is_open(status.attempt) else set()


def leaving_problem(s: Snapshot, status: JobStatus, pod: Pod) -> str:
    """Why no attempt may open on this pod; empty: its node is good, or needed."""
    return f"is on node {pod.node}, which the job leaves" if pod.node in excluded(status, s.now) else ""


def are_judged(s: Snapshot, status: JobStatus) -> bool:
    """Whether every bad node is either excluded or needed."""
    return not any(entry.state == "suspect" and is_bad(entry, _limit(s)) for entry in status.nodes)


def leave_nodes(s: Snapshot, status: JobStatus) -> Change:
    """Deletes pods on excluded nodes: between attempts all of them, during one only spares, and servers, whose requests go to others. Pods of other
    schedulers are replaced with their template, which names the nodes (see render/template.py)."""
    spec = s.spec_of(status.attempt)
    stays = status.outcome or status.suspended or spec is None or not spec.scheduling.assigns_nodes
    if stays or not s.refuge:
        return Change(status)
    gone = tuple(_leaving(s, status))
    texts = (f"pod {pod.name} is deleted: it {leaving_problem(s, status, pod)}" for pod in gone)
    return Change(status, tuple(Event("Normal", reasons.MEMBER_DELETED, text) for text in texts), delete=gone)


def _leaving(s: Snapshot, status: JobStatus) -> Iterator[Pod]:
    nodes, members = excluded(status, s.now), _members(status)
    for pod in s.pods:
        if pod.node in nodes and not pod.deleting and pod.uid not in members and pod.lost_since is None:
            yield pod
