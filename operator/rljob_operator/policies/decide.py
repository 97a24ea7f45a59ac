"""The next status of a job, as a pure function of its snapshot: a fold over POLICIES, each of which sees what those before it decided."""

from dataclasses import dataclass, replace

from rljob_api.status import JobStatus
from rljob_api.text import one_line
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.accounting import account, account_end
from rljob_operator.policies.attempt import advance_attempt, count_restart, recover_attempt, succeed
from rljob_operator.policies.autoscaling import scale_workers
from rljob_operator.policies.change import Change, Event, Policy, Ungate
from rljob_operator.policies.describe import describe
from rljob_operator.policies.lifecycle import (
    clean_up_after_ttl,
    consume_request,
    enforce_active_deadline,
    enforce_pending_deadline,
    expire_override,
    free_pods,
    name_gateway,
    sleep_when_idle,
)
from rljob_operator.policies.message import postpone_spec
from rljob_operator.policies.nodes import blame_nodes, judge_nodes, leave_nodes
from rljob_operator.policies.opening import open_attempt
from rljob_operator.policies.placement import assign_nodes
from rljob_operator.policies.pods import (
    delete_pods,
    let_ended_pods_go,
    replace_account,
    replace_sandboxes,
    replace_token,
    report_stuck_pods,
)
from rljob_operator.policies.progress import record_progress, record_server_failures
from rljob_operator.policies.release import leave_for_priority, release_stranded
from rljob_operator.policies.servers import run_servers

POLICIES: tuple[Policy, ...] = (
    recover_attempt,  # if the status has lost it
    consume_request,  # a request of `kubectl rljob`, once
    expire_override,  # a suspend or resume request, when spec.suspend changes
    sleep_when_idle,  # a service that nobody asks for anything, until somebody does
    replace_token,  # if a pod lacks it, or two hold different ones
    replace_account,  # if it was deleted: the pods whose tokens went with it
    judge_nodes,  # that failures point at or whose owner wants them to be left: avoided, or needed
    advance_attempt,  # the open attempt: drain, stop, end
    record_progress,  # rank 0's progress, complete when the attempt has just ended
    record_server_failures,  # of servers, which their pods start again
    count_restart,  # if the attempt failed: a restart, or the end
    blame_nodes,  # that failures point at
    succeed,  # if the attempt succeeded: the end
    enforce_active_deadline,  # if attempts ran for too long: the end
    free_pods,  # suspend, or resume
    scale_workers,  # as many as their calls need
    leave_for_priority,  # the nodes, if a job of higher priority needs them
    assign_nodes,  # a node for every pod, before any is ungated
    release_stranded,  # pods that hold nodes for too long while others have none
    run_servers,  # of several pods: their generations, which end and start as a whole
    account_end,  # of an attempt, before the next one opens
    open_attempt,  # the next attempt
    enforce_pending_deadline,  # if none opens for too long: the end
    clean_up_after_ttl,  # the children of a job that has ended
    leave_nodes,  # that are avoided
    delete_pods,  # that keep the next attempt from opening
    let_ended_pods_go,  # that their backend keeps after their end
    replace_sandboxes,  # that have been used
    name_gateway,  # if another pod is the gateway of a service
    report_stuck_pods,  # that were deleted and do not end
    postpone_spec,  # an event for a spec that takes effect with the next attempt
    account,  # for the GPUs that the job holds
    describe,  # state, message, counts and conditions, which nothing above reads
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write, in this order: the status, the children that `render` makes of it, deletions, events."""

    status: JobStatus
    events: tuple[Event, ...] = ()
    delete: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    ungate: tuple[Ungate, ...] = ()
    let_go: tuple[Pod, ...] = ()
    requeue_after: float | None = None
    """Seconds; None: only a change calls for another reconcile."""


def decide(s: Snapshot) -> Decision:
    status, changes = s.status, list[Change]()
    for policy in POLICIES:
        changes.append(policy(s, status))
        status = changes[-1].status
    total = Change.all(changes)
    events = tuple(replace(event, message=one_line(event.message)) for event in total.events)
    due = max(0.0, min(total.due) - s.now) if total.due else None
    return Decision(total.status, events, total.delete, total.force, total.ungate, total.let_go, due)
