"""The next status of a job, as a pure function of what was observed. One file per policy."""

from dataclasses import dataclass, replace

from rljob_api.status import JobStatus
from rljob_api.text import one_line
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.attempt import advance_attempt
from rljob_operator.policies.change import Event, Policy, Ungate
from rljob_operator.policies.credentials import replace_account, replace_token
from rljob_operator.policies.deadlines import clean_up_after_ttl, enforce_active_deadline, enforce_pending_deadline
from rljob_operator.policies.describe import describe
from rljob_operator.policies.eviction import delete_pods
from rljob_operator.policies.opening import open_attempt
from rljob_operator.policies.outcome import count_restart, succeed
from rljob_operator.policies.placement import assign_nodes
from rljob_operator.policies.progress import record_progress
from rljob_operator.policies.requests import consume_request
from rljob_operator.policies.rollout_failure import record_rollout_failure
from rljob_operator.policies.state import postpone_spec
from rljob_operator.policies.suspension import expire_override, free_pods

POLICIES: tuple[Policy, ...] = (
    consume_request,  # what a user asked for, once
    expire_override,
    replace_token,  # when a pod lacks it, or two hold different ones
    replace_account,  # and the pods that it left without a token
    advance_attempt,  # the open attempt: drain, stop, close
    record_progress,  # rank 0's progress, complete when the attempt has just closed
    record_rollout_failure,  # a server that its pod starts again
    count_restart,  # if it failed: what that costs
    succeed,  # if it succeeded: the end
    enforce_active_deadline,  # if it ran for too long: the end
    free_pods,  # pods back, or wanted again
    assign_nodes,  # seats for pods, before any is released to its node
    open_attempt,  # the next attempt
    enforce_pending_deadline,  # if it does not open for too long: the end
    clean_up_after_ttl,  # children of a job that has ended
    delete_pods,  # pods that stand in its way
    postpone_spec,  # a spec that changed too late for this attempt
    describe,  # for people and tools; nothing above reads it
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write, in this order: the status, the children that `render` makes of it, deletions, events."""

    status: JobStatus
    events: tuple[Event, ...] = ()
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    ungate: tuple[Ungate, ...] = ()
    requeue_after: float | None = None
    """Seconds; None: nothing is due without a change."""


def decide(s: Snapshot) -> Decision:
    status = s.status
    events: tuple[Event, ...] = ()
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    ungate: tuple[Ungate, ...] = ()
    due: tuple[float, ...] = ()
    for policy in POLICIES:
        change = policy(s, status)
        status, events = change.status, events + change.events
        delete, force = delete + change.delete, force + change.force
        ungate, due = ungate + change.ungate, due + change.due
    events = tuple(replace(event, message=one_line(event.message)) for event in events)
    return Decision(status, events, delete, force, ungate, max(0.0, min(due) - s.now) if due else None)
