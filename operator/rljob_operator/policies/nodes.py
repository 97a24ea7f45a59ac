"""What the job does about nodes that failures point at, or that their owner wants to be left.

It leaves them if the whole gang has capacity elsewhere: between attempts, or at the end of a step if the owner wants it. Otherwise it uses them, and
says so. If there is capacity to leave some of them, those are the worst ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api import names, reasons
from rljob_api.protocol import Failure
from rljob_api.status import Attempt, JobStatus
from rljob_api.status_parts import NodeStatus
from rljob_api.text import one_line
from rljob_operator.cache.pods import REMEMBERED_SECONDS, Pod
from rljob_operator.model.ordinals import target
from rljob_operator.model.scheduling import MOST_NODES, excluded, is_bad, observed
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.causes import Cause, recorded_cause
from rljob_operator.policies.change import Change, Event, just_ended, set_
from rljob_operator.schedulers.builtin.request import required_names, wanted_names
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
    """Whether the job's own scheduler, which knows more than capacities, finds no node for a pod that may not go to excluded ones,
    and that the gang cannot do without."""
    following = target(s, status)
    if following is None or following.spec.scheduling.facts.assigns_nodes or is_open(status.attempt):
        return False
    required = required_names(following.spec, wanted_names(s.job.name, following))
    stuck = (p for p in s.pods if p.unschedulable and not p.deleting and p.created + STUCK_SECONDS <= s.now)
    return any(p.name in required for p in stuck)


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
    there = [pod for pod in s.pods if pod.node in nodes and not pod.deleting and names.is_placed(pod.role)]
    if spec is None or not there:
        return False
    members = _members(status)
    return any(
        p.uid in members if names.is_model_role(p.role) else not spec.scheduling.facts.assigns_nodes for p in there
    )


def leaves_later(s: Snapshot, status: JobStatus) -> bool:
    """Whether pods on excluded nodes stay until the open attempt ends: another scheduler placed them, and all of them are replaced together."""
    spec = s.spec_of(status.attempt)
    stays = spec is not None and not spec.scheduling.facts.assigns_nodes
    return stays and is_open(status.attempt) and not is_leaving(s, status)


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
    stays = status.outcome or status.suspended or spec is None or not spec.scheduling.facts.assigns_nodes
    if stays or not s.refuge:
        return Change(status)
    gone = tuple(_leaving(s, status))
    texts = (f"pod {pod.name} is deleted: it {leaving_problem(s, status, pod)}" for pod in gone)
    return Change(status, tuple(Event("Normal", reasons.MEMBER_DELETED, text) for text in texts), delete=gone)


def _leaving(s: Snapshot, status: JobStatus) -> Iterator[Pod]:
    nodes, members = excluded(status, s.now), _members(status)
    for pod in s.pods:
        if not names.is_placed(pod.role):  # the cluster's scheduler would bring it back
            continue
        if pod.node in nodes and not pod.deleting and pod.uid not in members and pod.lost_since is None:
            yield pod


LONGEST = 300
"""Characters of a cause."""
XID = re.compile(r"\bXid\b(?:\s*\([^)]{0,80}\))?[\s:]{0,8}(\d{1,4})", re.IGNORECASE)
"""NVIDIA's driver writes `NVRM: Xid (PCI:0000:41:00): 79, pid=...`."""
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45})
"""Xids that a program or its end causes, too (NVIDIA, Xid Errors): 45 comes with every killed process."""
GPU_ERROR = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|GPU is lost|GPU requires reset|no CUDA-capable device|"
    r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA driver initialization failed|system not yet initialized",
    re.IGNORECASE,
)
"""Errors of CUDA and NVML that name the device and not the program."""
OUT_OF_MEMORY = re.compile(r"out ?of ?memory|OOM", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hint:
    """One failure that points at a node."""

    node: str
    key: str
    cause: str


def blame_nodes(s: Snapshot, status: JobStatus) -> Change:
    """Adds the failures of this reconcile to their nodes. A node that has reached the limit is judged in the next one, before an attempt opens."""
    spec = s.spec_of(status.attempt)
    limit = spec.scheduling.exclude_after_failures if spec else 0
    if not limit or status.outcome:
        return Change(status)
    nodes = {entry.node: entry for entry in status.nodes}
    for hint in _hints(s, status):
        entry = nodes.get(hint.node) or NodeStatus(node=hint.node)
        full = len(entry.failures) >= limit or (hint.node not in nodes and len(nodes) >= MOST_NODES)
        if full or hint.key in entry.failures:
            continue
        until = stamp(s.now + REMEMBERED_SECONDS)
        news = {"failures": [*entry.failures, hint.key], "cause": one_line(hint.cause)[:LONGEST], "until": until}
        nodes[hint.node] = entry.model_copy(update=news)
    entries = list(nodes.values())
    undecided = any(entry.state == "suspect" and is_bad(entry, limit) for entry in entries)
    return Change(set_(status, nodes=entries) if entries != status.nodes else status, due=(s.now,) if undecided else ())


def _hints(s: Snapshot, status: JobStatus) -> Iterator[Hint]:
    attempt = status.attempt
    cause = recorded_cause(attempt) if attempt and just_ended(s, status) else None
    if attempt and cause and _points_at_node(cause):
        node = _node(attempt, cause.pod)
        if node:
            yield Hint(node, f"attempt {attempt.number}", f"attempt {attempt.number}: {cause.reason}: {cause}")
    recent = [last.pod for last in s.failed.values() if s.now - last.at < REMEMBERED_SECONDS]
    for pod in (*s.pods, *recent):
        if pod.node and pod.never_started:
            yield Hint(pod.node, pod.uid, f"pod {pod.name} failed before it started: {pod.failed}")
    for pod in s.servers:
        report = s.report(pod)
        if pod.node and report and report.failure and names_gpu(report.failure):
            yield Hint(pod.node, f"{pod.uid} {report.failure.time:.0f}", f"{pod.name}: {report.failure.message}")


def _node(attempt: Attempt, pod: str) -> str:
    return next((m.node for m in attempt.members if m.pod == pod), "")


def _points_at_node(cause: Cause) -> bool:
    """Whether the node may be why. A process that ran out of memory would do so anywhere."""
    if cause.reason == reasons.NODE_LOST or names_gpu(cause.failure):
        return True
    return cause.reason == reasons.PROCESS_KILLED and not OUT_OF_MEMORY.search(_text(cause.failure))


def names_gpu(failure: Failure) -> bool:
    """Whether the failure's text names an error of the GPU rather than of the program."""
    text = _text(failure)
    xids = {int(number) for number in XID.findall(text)}
    return bool(GPU_ERROR.search(text)) or bool(xids - XIDS_OF_PROGRAMS)


def _text(failure: Failure) -> str:
    return "\n".join((failure.exception, failure.message, *failure.lines))
