"""The part of the status that describes the rest, for people and tools. status.conditions follow the conventions of the Kubernetes API: all are
set from the first reconcile on, with the generation that they refer to."""

from collections.abc import Iterator

from rljob_api import names, reasons
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.spec.agent import EnvironmentPool
from rljob_api.status import (
    Condition,
    ConditionType,
    JobStatus,
    ProgressStatus,
    RoleStatus,
    SpareStatus,
    State,
)
from rljob_api.status_parts import ServerStatus
from rljob_api.text import one_line, plain
from rljob_operator.cache.pods import Pod
from rljob_operator.model.children import sentences
from rljob_operator.model.ordinals import is_unfit, sizes, target
from rljob_operator.model.scheduling import excluded
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.lifecycle import service_status
from rljob_operator.policies.message import message, state
from rljob_operator.policies.nodes import leaves_later, needed, why
from rljob_operator.policies.placement import on_nodes, refusal_message, unscheduled
from rljob_operator.policies.pod_problem import pod_problem
from rljob_operator.policies.pods import stuck_pods
from rljob_operator.policies.progress import urgent
from rljob_operator.policies.servers import server_name, unready
from rljob_operator.times import stamp

ConditionValue = tuple[bool | None, str, str]
"""Status (None: unknown), reason and message."""
TRANSIENT = ("Pending", "Starting", "Restarting", "Suspending")
"""States that the operator is working to leave."""
MOST_NODES = 3
"""Nodes that a message names, at most."""
MOST_UNREADY = 4
"""Servers of several pods that the status names, at most."""
WITHOUT_ATTEMPT = ("Pending", "Restarting", "Suspending")
"""Those in which no attempt runs or starts."""
NO_PODS, NO_SPARES = RoleStatus(), SpareStatus()
"""The counts of a role, and the spares, of a job that has none."""
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
        "Preempted": _preempted(status),
        "Suspended": (
            state == "Suspended",
            reasons.SUSPENDED if state in ("Suspending", "Suspended") else reasons.NOT_SUSPENDED,
            "",
        ),
        "Stalled": stalled,
        "Succeeded": _succeeded(status),
        "Failed": _failed(status, state),
    }
    return [_condition(s, kind, value, old.get(kind)) for kind, value in values.items()]


def _condition(s: Snapshot, kind: ConditionType, given: ConditionValue, old: Condition | None) -> Condition:
    value, reason, message = given
    status = STATUSES[value]
    if old and (old.status, old.reason, old.message, old.observed_generation) == (
        status,
        reason,
        message,
        s.job.generation,
    ):
        return old
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
        return False, s.conflicts[0].reason, "; ".join(sentences(s.conflicts))
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
    refusal = refusal_message(s, status)
    if refusal:
        return False, reasons.NOT_BOUND, refusal
    if on_nodes(s, status):
        return True, reasons.PLACED, ""
    why = "" if spec.scheduling.facts.assigns_nodes else unscheduled(s)
    return False, reasons.UNSCHEDULABLE if why else reasons.PLACING, why


def _nodes_sound(s: Snapshot, status: JobStatus) -> ConditionValue:
    """False while the job leaves a node, or uses one that it should leave."""
    used = {pod.node for pod in s.pods if not pod.deleting}
    bad = [entry for entry in status.nodes if entry.node in used and entry.state != "suspect"]
    lacking = [needed(entry) for entry in bad if entry.state == "needed"]
    if lacking:
        return False, reasons.NODE_NEEDED, "; ".join(lacking[:MOST_NODES])
    if bad:
        when = " when the attempt ends" if leaves_later(s, status) else ""
        texts = (f"leaves node {entry.node}{when}: {why(entry)}" for entry in bad[:MOST_NODES])
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


def _preempted(status: JobStatus) -> ConditionValue:
    preemption = status.preemption
    if preemption is None:
        return False, reasons.NOT_PREEMPTED, ""
    return (
        True,
        reasons.PREEMPTED,
        f"left its nodes at {preemption.since} to {preemption.by}, which has a higher priority or has reserved them",
    )


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


def describe(s: Snapshot, status: JobStatus) -> Change:
    status = set_(status, observed_generation=s.job.generation, **_roles(s, status))
    new_state = state(s, status)
    status = set_(status, state=new_state, message=message(s, status))
    described = set_(status, conditions=conditions(s, status, new_state))
    return Change(described, tuple(_refusals(status, described)))


def _refusals(before: JobStatus, after: JobStatus) -> Iterator[Event]:
    """An event for what cannot be written, whenever the condition says something new of it."""
    known = {c.message for c in before.conditions if c.type == "Admitted"}
    news = (c for c in after.conditions if c.type == "Admitted" and c.message not in known)
    return (Event("Warning", c.reason, c.message) for c in news if c.reason in reasons.UNWRITTEN)


def _roles(s: Snapshot, status: JobStatus) -> dict[str, object]:
    spec = s.spec_of(status.attempt)
    freed = bool(status.outcome) or status.suspended or spec is None
    pods = {**sizes(status, spec), **spec.gang_sizes} if spec else dict.fromkeys(names.ROLES, 0)
    wanted = {role: count // server_nodes(spec, role) if spec else count for role, count in pods.items()}
    spares = _spares(s, status)
    progress = status.progress
    if spec and spec.task != "service" and not progress.text:
        steps = spec.train.steps or 0  # with `epochs`, the trainer reports them
        progress = ProgressStatus(steps=steps, text=f"0/{steps or '?'}")
    whole = {role for role in wanted if spec and server_nodes(spec, role) > 1}
    counted = {
        role: _servers(s, status, role, 0 if freed else count)
        if role in whole
        else _role(s, role, 0 if freed and (status.outcome or not names.stays(role)) else count, spares)
        for role, count in wanted.items()
    }
    trainers, rollouts = counted.pop(names.ROLE_TRAINER), counted.pop(names.ROLE_ROLLOUT, NO_PODS)
    gangs = {role: counts for role, counts in counted.items() if names.is_model_role(role)}
    workers, gateway = counted.pop(names.ROLE_WORKER, NO_PODS), counted.pop(names.ROLE_GATEWAY, NO_PODS)
    scorers = {role: counted.pop(role) for role in [role for role in counted if names.is_worker_role(role)]}
    environments = {pool.name: counted.pop(names.sandbox_role(i)) for i, pool in enumerate(_environments(spec))}
    pools = {role: counts for role, counts in counted.items() if role not in gangs}
    roles = {"trainer": trainers, "gangs": gangs, "rollout": rollouts, "workers": workers, "pools": pools}
    roles |= {
        "scorers": scorers,
        "environments": environments,
        "gateway": gateway,
        "service": service_status(s, status),
    }
    return roles | {"progress": progress, "spares": NO_SPARES if freed else _spare_status(s, status, spec, spares)}


def _environments(spec: RLJobSpec | None) -> list[EnvironmentPool]:
    return spec.environments if spec else []


def _spares(s: Snapshot, status: JobStatus) -> list[Pod]:
    """The trainer's pods that stand by."""
    current = target(s, status)
    if current is None or not current.spec.scheduling.spare_nodes:
        return []
    ordinals = current.ordinals[names.ROLE_TRAINER][current.spec.trainer.nodes :]
    return [pod for pod in s.of(names.ROLE_TRAINER) if pod.ordinal in ordinals]


def _spare_status(s: Snapshot, status: JobStatus, spec: RLJobSpec | None, spares: list[Pod]) -> SpareStatus:
    if spec is None or not spec.scheduling.spare_nodes:
        return NO_SPARES
    fit = (pod for pod in spares if pod.running and not is_unfit(pod, excluded(status, s.now)))
    members = status.attempt.of(names.ROLE_TRAINER) if status.attempt and is_open(status.attempt) else []
    return SpareStatus(
        desired=spec.scheduling.spare_nodes,
        warm=sum(s.report(pod) is not None for pod in fit),
        standing_in=[m.pod for m in members if int(m.pod.rpartition("-")[2]) >= spec.trainer.nodes],
    )


def _role(s: Snapshot, role: str, desired: int, spares: list[Pod]) -> RoleStatus:
    ready = sum(p.ready and not p.deleting and p not in spares for p in s.of(role))
    return _counted(ready, desired, names.selector(s.job.name, role))


def _servers(s: Snapshot, status: JobStatus, role: str, desired: int) -> RoleStatus:
    """Servers of several pods, by their heads."""
    servers = [one for one in status.servers if one.role == role]
    reasons_of = ((one, _unready(s, one)) for one in servers)
    waiting = [f"{server_name(one)}: {why}" for one, why in reasons_of if why]
    counted = _counted(len(servers) - len(waiting), desired, names.heads(s.job.name, role))
    return counted.model_copy(update={"unready": waiting[:MOST_UNREADY]})


def _unready(s: Snapshot, server: ServerStatus) -> str:
    """What keeps a server of several pods from answering, with the pod; empty: nothing."""
    problem = unready(s, server)
    if not problem:
        return ""
    pod = next((pod for pod in s.pods if pod.name == problem[0]), None)
    why = pod_problem(s, pod) if pod else ""
    return one_line(f"{problem[0]}: {why}" if why else " ".join(problem))


def _counted(ready: int, desired: int, selector: str) -> RoleStatus:
    text = f"{ready}/{desired}" if desired else "-"
    return NO_PODS.model_copy(update={"ready": ready, "desired": desired, "text": text, "selector": selector})


DISPLAY = (
    *("trainer", "spares", "gangs", "rollout", "workers", "scorers", "environments", "gateway", "pools"),
    *("service", "message", "conditions", "accounting"),
)
OBSERVATIONAL = (
    *DISPLAY,
    "state",
    "observed_generation",
    "progress",
    "checkpoint",
    "lost_steps",
    "first_step_at",
    "last_rollout_failure",
    "server_failures",
    "stuck_pods",
)


def is_display(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses differ in nothing but counts, sentences and their conditions."""
    return _differ_only_in(DISPLAY, old, new)


def can_wait(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses differ in nothing but counts, sentences and numbers of progress."""
    return urgent(new.progress) == urgent(old.progress) and _differ_only_in((*DISPLAY, "progress"), old, new)


def is_observational(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses differ only in what has happened: nothing that the operator does follows from the difference."""
    return _differ_only_in(OBSERVATIONAL, old, new)


def _differ_only_in(fields: tuple[str, ...], old: JobStatus, new: JobStatus) -> bool:
    return new.model_copy(update={field: getattr(old, field) for field in fields}) == old
