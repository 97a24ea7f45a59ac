"""Pods that the operator deletes itself, so that their StatefulSets replace them."""

from dataclasses import replace

from rljob_api import reasons
from rljob_api.status import Attempt, JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.ordinals import certainly_dead, is_stuck, lost_at
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event
from rljob_operator.policies.members import member_statuses
from rljob_operator.policies.opening import outdated
from rljob_operator.times import seconds

STOP_TIMEOUT = 60.0
"""Seconds that a launcher has to report the end of a stopped attempt. It kills its ranks within a few."""


def delete_pods(s: Snapshot, status: JobStatus) -> Change:
    limit = s.lifecycle.node_loss_seconds
    dead = tuple(p for p in s.pods if certainly_dead(p) and not is_stuck(p, limit, s.now))  # finalizers outlast it
    change = _obstacles(s, status)
    events = tuple(_event(p, "its node is gone or out of service") for p in dead)
    due = change.due + lost_at(s.pods, limit, s.now)
    return replace(change, events=change.events + events, force=dead, due=due)


def _obstacles(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is not None and is_open(attempt):
        return _unresponsive_members(s, status, attempt)
    if s.spec is None or status.outcome or status.suspended:
        return Change(status)
    stale = outdated(s, s.spec, status)
    return Change(status, tuple(_event(p, "its template is outdated") for p in stale), delete=stale)


def _unresponsive_members(s: Snapshot, status: JobStatus, attempt: Attempt) -> Change:
    """Members whose launchers do not answer `stop`: no attempt may open while they may still run."""
    if attempt.command != "stop":
        return Change(status)
    commanded = seconds(attempt.commanded_at)
    until = commanded + STOP_TIMEOUT
    if commanded <= s.now + 1.0 and s.now < until:  # otherwise the clock was set back
        return Change(status, due=(until,))
    silent = tuple(m.pod for m in member_statuses(s, attempt) if not m.ended and m.pod and not m.pod.deleting)
    return Change(status, tuple(_event(p, "its launcher does not answer") for p in silent), delete=silent)


def _event(pod: Pod, why: str) -> Event:
    return Event("Normal", reasons.MEMBER_DELETED, f"pod {pod.name} is deleted: {why}")
