"""A job gives its nodes back without being asked by its user: because its gang is stranded, or to a job of higher priority.

A gang is stranded if some of its pods hold nodes, others have none, and so no attempt can run. Its nodes are given back after strandedSeconds. The
job keeps its place in the queue, which follows from its priority and age. A scheduler that starts whole gangs brings the pods that replace the
released ones onto nodes when all of them fit. Others would bring some of them back at once, so the job has no pods for another strandedSeconds. This
holds with any scheduler if the API server refuses what an attempt needs.

To a job of higher priority it gives them as if it were suspended: it finishes the step, saves and releases its pods. Then it waits for nodes as
others do, behind its gates, and continues where it was. Nobody's `suspend` is touched. Who has to leave is decided by the scheduling cycle
(schedulers/builtin/reservations.py). The status then says so: a job that has begun to leave does not stop halfway, also if the operator ends or the
other job is gone meanwhile. A job that cannot save within drainTimeoutSeconds is stopped. Nobody waits for pods that are held (model/ordinals.py):
the job is placed without them.
"""

from dataclasses import replace

from rljob_api import names, reasons
from rljob_api.status import JobStatus
from rljob_api.status_parts import Preemption
from rljob_operator.cache.pods import Pod
from rljob_operator.model.children import sentences
from rljob_operator.model.ordinals import frees_its_node, is_held, target
from rljob_operator.model.snapshot import Snapshot, Target, is_open
from rljob_operator.policies.change import Change, Event, drained, set_
from rljob_operator.policies.opening import awaits_attempt
from rljob_operator.schedulers.builtin.request import required_names, wanted_names
from rljob_operator.times import is_ahead, is_past, seconds, stamp


def release_stranded(s: Snapshot, status: JobStatus) -> Change:
    limit, until = s.lifecycle.stranded_seconds, seconds(status.released_until)
    if is_ahead(until, limit, s.now) and awaits_attempt(s, status):
        return Change(status, due=(until,))
    status = set_(status, released_until="") if status.released_until else status
    why = _lacking(s, status)
    if not why:
        return Change(set_(status, stranded_since="") if status.stranded_since else status)
    if not is_past(seconds(status.stranded_since), s.now):
        status = set_(status, stranded_since=stamp(s.now))
    until = seconds(status.stranded_since) + limit
    if s.now < until:
        return Change(status, due=(until,))
    return _give_back(s, status, why)


def _give_back(s: Snapshot, status: JobStatus, why: str) -> Change:
    """An open attempt, which waits for its rollouts, is drained before."""
    attempt, spec = status.attempt, s.spec_of(status.attempt)
    if attempt and is_open(attempt):
        return Change(set_(status, attempt=drained(attempt, reasons.STRANDED, s.now)))
    pods = tuple(pod for pod in s.pods if frees_its_node(s, pod) and not names.stays(pod.role))
    event = Event("Warning", reasons.STRANDED, f"{_count(pods)} and starts again with the whole gang: {why}")
    status = set_(status, stranded_since="")
    if status.placement:
        status = set_(status, placement=status.placement.model_copy(update={"assignments": []}))
    if spec and (s.hindrances or not spec.scheduling.facts.starts_whole_gangs):
        status = set_(status, released_until=stamp(s.now + s.lifecycle.stranded_seconds))
    return Change(status, (event,), (s.now,), delete=pods)


def _count(pods: tuple[Pod, ...]) -> str:
    return f"the job gives up the {'node of 1 pod' if len(pods) == 1 else f'nodes of {len(pods)} pods'}"


def _lacking(s: Snapshot, status: JobStatus) -> str:
    """Which pods lack nodes, if that keeps an attempt from running while others hold theirs; empty: that is not so."""
    current = target(s, status)
    if current is None or not (awaits_attempt(s, status) or _awaits_servers(s, status)) or not _holding(s):
        return ""
    if s.hindrances and not is_open(status.attempt):
        return "; ".join(sentences(s.hindrances))
    return status.placement.problem if status.placement else _without_node(s, current)


def _awaits_servers(s: Snapshot, status: JobStatus) -> bool:
    """Whether the open attempt does nothing, since fewer than minReplicas rollouts have the policy, or ends for that reason."""
    attempt = status.attempt
    if attempt is None or not is_open(attempt):
        return False
    progress = s.progress_of(attempt)
    waits = attempt.command == "run" and progress is not None and progress.phase == "waiting"
    return waits or attempt.reason == reasons.STRANDED


def _holding(s: Snapshot) -> tuple[Pod, ...]:
    """Pods that hold a node of the gang's and would let it go."""
    return tuple(p for p in s.placed if frees_its_node(s, p))


def _without_node(s: Snapshot, current: Target) -> str:
    """The first pod that another scheduler has brought onto no node, with what it says of it."""
    pods = {pod.name: pod for pod in s.pods}
    for name in required_names(current.spec, wanted_names(s.job.name, current)):
        pod = pods.get(name)
        if pod is None or not pod.node:
            return f"{name} has no node" + (f": {pod.unschedulable}" if pod and pod.unschedulable else "")
    return ""


def release_note(s: Snapshot, status: JobStatus) -> str:
    """What becomes of the job's pods, as the end of a sentence about what it waits for; empty: nothing."""
    if status.released_until:
        return f"; all pods are released, and asked for again at {status.released_until}"
    if not status.stranded_since:
        return ""
    until = stamp(seconds(status.stranded_since) + s.lifecycle.stranded_seconds)
    return f"; pods that hold nodes are released at {until}"


def leave_for_priority(s: Snapshot, status: JobStatus) -> Change:
    known, attempt = status.preemption, status.attempt
    if status.outcome or status.wants_suspend(s.spec_suspend):  # its pods go anyway
        return Change(set_(status, preemption=None) if known else status)
    holding = tuple(pod for pod in s.placed if pod.node or pod.ungated_at is not None)
    if known and not known.released:
        return _leave(s, status, known, holding)
    if s.preemptor and not _is_released(s, holding):
        event = Event(
            "Normal",
            reasons.PREEMPTED,
            f"leaves its nodes to {s.preemptor}, which has a higher priority or has reserved them",
        )
        begun = _leave(s, status, Preemption(by=s.preemptor, since=stamp(s.now)), holding)
        return replace(begun, events=(event,))
    return Change(set_(status, preemption=None) if known and is_open(attempt) else status)


def _leave(s: Snapshot, status: JobStatus, known: Preemption, holding: tuple[Pod, ...]) -> Change:
    """`holding`: pods that hold nodes. When they have freed these, the job may ask for nodes again."""
    attempt = status.attempt
    if attempt and is_open(attempt):
        return Change(set_(status, preemption=known, attempt=drained(attempt, reasons.PREEMPTED, s.now)))
    released = _is_released(s, holding)
    status = set_(status, preemption=known.model_copy(update={"released": released}))
    return Change(status, due=(s.now,) if released else (), delete=tuple(pod for pod in holding if not pod.deleting))


def _is_released(s: Snapshot, holding: tuple[Pod, ...]) -> bool:
    """Whether none of these pods will free its node any more: those that are held may never end."""
    return all(is_held(pod, s.lifecycle.node_loss_seconds, s.now) for pod in holding)
