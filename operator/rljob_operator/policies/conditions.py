"""status.conditions, by the conventions of the Kubernetes API: all are set from the first reconcile on, with the generation that they refer to."""

from rljob_api import reasons
from rljob_api.status import Condition, ConditionType, JobStatus, State
from rljob_api.text import plain
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.nodes import needed, why
from rljob_operator.policies.refusal import on_nodes, refusal_message
from rljob_operator.policies.stuck import stuck_pods
from rljob_operator.times import stamp

ConditionValue = tuple[bool | None, str, str]
"""Status (None: unknown), reason and message."""
TRANSIENT = ("Pending", "Starting", "Restarting", "Suspending")
"""States that the operator is working to leave."""
MOST_NODES = 3
"""Nodes that a message names, at most."""
WITHOUT_ATTEMPT = ("Pending", "Restarting", "Suspending")
"""Those in which no attempt runs or starts."""
STATUSES = {True: "True", False: "False", None: "Unknown"}


def conditions(s: Snapshot, status: JobStatus, state: State) -> list[Condition]:
    old = {c.type: c for c in status.conditions}
    stalled = _stalled(status, state)
    reconciling = state in TRANSIENT and not stalled[0]
    values: dict[ConditionType, ConditionValue] = {
        "Admitted": _admitted(s),
        "Placed": _placed(s, status),
        "NodesSound": _nodes_sound(s, status),
        "TrainerReady": (state == "Running", _reason(status, state), ""),
        "RolloutsReady": _rollouts_ready(s, status),
        "Reconciling": (reconciling, _reason(status, state), status.message if reconciling else ""),
        "Checkpointed": _checkpointed(status),
        "Suspended": (
            state == "Suspended",
            reasons.SUSPENDED if state in ("Suspending", "Suspended") else reasons.NOT_SUSPENDED,
            "",
        ),
        "Stalled": stalled,
        "Succeeded": _succeeded(status),
        "Failed": _failed(status, state),
    }
    return [_condition(s, kind, found, old.get(kind)) for kind, found in values.items()]


def _condition(s: Snapshot, kind: ConditionType, found: ConditionValue, old: Condition | None) -> Condition:
    value, reason, message = found
    status = STATUSES[value]
    since = old.last_transition_time if old and old.status == status else stamp(s.now)
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=plain(message),
        last_transition_time=since,
        observed_generation=s.job.generation,
    )


def _admitted(s: Snapshot) -> ConditionValue:
    if s.violations:
        return False, reasons.INVALID_SPEC, f"rules that are broken: {len(s.violations)}; see status.message"
    if s.conflicts:
        return False, s.conflicts[0].reason, "; ".join(p.message for p in s.conflicts)
    return True, reasons.SPEC_ACCEPTED, ""


def _placed(s: Snapshot, status: JobStatus) -> ConditionValue:
    """Whether every pod of the gang is on a node, whichever scheduler placed them."""
    spec = s.spec_of(status.attempt)
    if spec is None or status.suspended or status.outcome:
        return False, reasons.PODS_PENDING, ""
    if status.placement and status.placement.problem:
        return False, reasons.UNPLACEABLE, status.placement.problem
    if status.placement and status.placement.unschedulable:
        return False, reasons.UNSCHEDULABLE, status.placement.unschedulable
    if why := refusal_message(s, status):
        return False, reasons.NOT_BOUND, why
    placed = on_nodes(s, status)
    return placed, reasons.PLACED if placed else reasons.PLACING, ""


def _nodes_sound(s: Snapshot, status: JobStatus) -> ConditionValue:
    """False while the job leaves a node, or uses one that it should leave."""
    used = {pod.node for pod in s.pods if not pod.deleting}
    bad = [entry for entry in status.nodes if entry.node in used and entry.state != "suspect"]
    if lacking := [needed(entry) for entry in bad if entry.state == "needed"]:
        return False, reasons.NODE_NEEDED, "; ".join(lacking[:MOST_NODES])
    if bad:
        texts = (f"leaves node {entry.node}: {why(entry)}" for entry in bad[:MOST_NODES])
        return False, reasons.NODE_EXCLUDED, "; ".join(texts)
    return True, reasons.NODES_SOUND, ""


def _rollouts_ready(s: Snapshot, status: JobStatus) -> ConditionValue:
    spec = s.spec_of(status.attempt)
    if spec is None:
        return False, reasons.TOO_FEW_ROLLOUTS, ""
    if spec.supervised:
        return True, reasons.NOT_NEEDED, f"task {spec.task} has no rollouts"
    enough = status.rollout.ready >= spec.rollout.required
    counts = status.rollout.text if status.rollout.desired else ""
    return enough, reasons.ENOUGH_ROLLOUTS if enough else reasons.TOO_FEW_ROLLOUTS, counts


def _checkpointed(status: JobStatus) -> ConditionValue:
    latest = status.checkpoint.latest
    if latest is None:
        return False, reasons.NO_CHECKPOINT, ""
    return True, reasons.CHECKPOINT_SAVED, f"step {latest.step} at {latest.path}"


def _stalled(status: JobStatus, state: State) -> ConditionValue:
    """Whether the job gets no further unless somebody does something. A pod that does not end stalls no job that runs without it."""
    if state in WITHOUT_ATTEMPT and status.stuck_pods:
        return True, reasons.POD_STUCK, stuck_pods(status.stuck_pods)
    if state in WITHOUT_ATTEMPT and has_just_failed(status, reasons.VOLUME_FULL):
        return True, reasons.VOLUME_FULL, status.message
    return state == "Failed", _reason(status, state), status.message if state == "Failed" else ""


def has_just_failed(status: JobStatus, reason: str) -> bool:
    """Whether the last attempt failed for this reason, and no other has been opened since."""
    last, attempt = status.last_failure, status.attempt
    return bool(last and attempt and (last.attempt, last.reason) == (attempt.number, reason))


def _succeeded(status: JobStatus) -> ConditionValue:
    if status.outcome:
        return status.outcome == "Succeeded", status.outcome_reason, ""
    return None, reasons.NOT_FINISHED, ""


def _failed(status: JobStatus, state: State) -> ConditionValue:
    """Also true when the spec was refused before the job started, so that nobody waits for its end for ever."""
    if state == "Failed":
        return True, _reason(status, state), status.message
    return (False, status.outcome_reason, "") if status.outcome else (None, reasons.NOT_FINISHED, "")


def _reason(status: JobStatus, state: State) -> str:
    """Reason of the conditions about the gang."""
    if state in ("Succeeded", "Failed"):
        return status.outcome_reason or reasons.INVALID_SPEC
    if state == "Running":
        return reasons.RUNNING
    if state in ("Suspended", "Suspending"):
        return reasons.SUSPENDED
    if status.attempt and is_open(status.attempt):
        return status.attempt.reason or reasons.STARTING
    return reasons.BACKING_OFF if status.restarts.not_before else reasons.PODS_PENDING
