"""Conditions, by the Kubernetes conventions: all set from the first pass on, each with the generation it speaks of."""

from rljob_api import reasons
from rljob_api.status import Condition, ConditionType, JobStatus, State
from rljob_api.text import plain
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.refusal import on_nodes, refusal
from rljob_operator.times import stamp

ConditionValue = tuple[bool | None, str, str]
"""True, false or unknown; reason; message."""
MOVING = ("Pending", "Starting", "Restarting", "Suspending")
"""States that the operator works to leave."""
WORDS = {True: "True", False: "False", None: "Unknown"}


def conditions(s: Snapshot, status: JobStatus, state: State) -> list[Condition]:
    old = {c.type: c for c in status.conditions}
    values: dict[ConditionType, ConditionValue] = {
        "Admitted": _admitted(s),
        "Placed": _placed(s, status),
        "TrainerReady": (state == "Running", _reason(status, state), ""),
        "RolloutsReady": _rollouts_ready(s, status),
        "Reconciling": (state in MOVING, _reason(status, state), status.message if state in MOVING else ""),
        "Checkpointed": _checkpointed(status),
        "Suspended": (
            state == "Suspended",
            reasons.SUSPENDED if state in ("Suspending", "Suspended") else reasons.NOT_SUSPENDED,
            "",
        ),
        "Stalled": (state == "Failed", _reason(status, state), status.message if state == "Failed" else ""),
        "Succeeded": _succeeded(status),
        "Failed": _failed(status, state),
    }
    return [_condition(s, kind, found, old.get(kind)) for kind, found in values.items()]


def _condition(s: Snapshot, kind: ConditionType, found: ConditionValue, old: Condition | None) -> Condition:
    value, reason, message = found
    word = WORDS[value]
    since = old.last_transition_time if old and old.status == word else stamp(s.now)
    return Condition(
        type=kind,
        status=word,
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
    """Whoever placed them: every pod of the gang is on a node."""
    spec = s.spec_of(status.attempt)
    if spec is None or status.suspended or status.outcome:
        return False, reasons.PODS_PENDING, ""
    if status.placement and status.placement.problem:
        return False, reasons.UNPLACEABLE, status.placement.problem
    if status.placement and status.placement.unschedulable:
        return False, reasons.UNSCHEDULABLE, status.placement.unschedulable
    if why := refusal(s, status):
        return False, reasons.NOT_BOUND, why
    placed = on_nodes(s, status)
    return placed, reasons.PLACED if placed else reasons.PLACING, ""


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


def _succeeded(status: JobStatus) -> ConditionValue:
    if status.outcome:
        return status.outcome == "Succeeded", status.outcome_reason, ""
    return None, reasons.NOT_FINISHED, ""


def _failed(status: JobStatus, state: State) -> ConditionValue:
    """True also of a spec that was refused before the job began, so that whoever waits for an end does not wait for ever."""
    if state == "Failed":
        return True, _reason(status, state), status.message
    return (False, status.outcome_reason, "") if status.outcome else (None, reasons.NOT_FINISHED, "")


def _reason(status: JobStatus, state: State) -> str:
    """Why the gang is where it is, in one word."""
    if state in ("Succeeded", "Failed"):
        return status.outcome_reason or reasons.INVALID_SPEC
    if state == "Running":
        return reasons.RUNNING
    if state in ("Suspended", "Suspending"):
        return reasons.SUSPENDED
    if status.attempt and is_open(status.attempt):
        return status.attempt.reason or reasons.STARTING
    return reasons.BACKING_OFF if status.restarts.not_before else reasons.PODS_PENDING
