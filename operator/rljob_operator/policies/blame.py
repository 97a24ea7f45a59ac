"""Failures that point at a node: they are remembered for it, and enough of them exclude it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api import reasons
from rljob_api.protocol import Failure
from rljob_api.status import Attempt, JobStatus, NodeStatus
from rljob_api.text import one_line
from rljob_operator.model.avoided_nodes import MOST_NODES, REMEMBERED_SECONDS, is_bad
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.causes import Cause, recorded_cause
from rljob_operator.policies.change import Change, just_ended, set_
from rljob_operator.times import stamp

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
    found = list(nodes.values())
    undecided = any(entry.state == "suspect" and is_bad(entry, limit) for entry in found)
    return Change(set_(status, nodes=found) if found != status.nodes else status, due=(s.now,) if undecided else ())


def _hints(s: Snapshot, status: JobStatus) -> Iterator[Hint]:
    attempt = status.attempt
    cause = recorded_cause(attempt) if attempt and just_ended(s, status) else None
    if attempt and cause and (node := _node(attempt, cause.pod)) and _points_at_node(cause):
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
