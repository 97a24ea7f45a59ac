"""A job gives its nodes to one of higher priority: as if it were suspended, it finishes the step, saves and releases its pods. Then it waits for
nodes as others do, behind its gates, and continues where it was. Nobody's `suspend` is touched.

Who has to leave is decided by the scheduling cycle (schedulers/builtin/preemption.py). The status then says so: a job that has begun to leave does
not stop halfway, also if the operator ends or the other job is gone meanwhile. A job that cannot save within drainTimeoutSeconds is stopped. Nobody
waits for pods that are held (model/ordinals.py): the job is placed without them.
"""

from dataclasses import replace

from rljob_api import reasons
from rljob_api.placement_status import Preemption
from rljob_api.status import JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import is_held
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, drained, set_
from rljob_operator.policies.lifecycle import is_suspension_wanted
from rljob_operator.times import stamp


def leave_for_priority(s: Snapshot, status: JobStatus) -> Change:
    known, attempt = status.preemption, status.attempt
    if status.outcome or is_suspension_wanted(s, status):  # its pods go anyway
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
