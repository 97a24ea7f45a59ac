"""status.state, whether the newest spec is in force, and status.message: one sentence about what is happening, or what to do."""

from collections.abc import Iterable

from rljob_api import names, reasons
from rljob_api.protocol import Progress
from rljob_api.rules.engine import lines
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, LastFailure, State
from rljob_api.status_parts import PlacementStatus
from rljob_api.text import one_line, plain
from rljob_operator.cache.pods import Pod
from rljob_operator.model.children import sentences
from rljob_operator.model.refused_pods import refused_roles
from rljob_operator.model.snapshot import Snapshot, is_open, sized
from rljob_operator.policies.causes import Cause, MemberStatus, member_statuses
from rljob_operator.policies.change import Change, Event
from rljob_operator.policies.opening import next_target, opening_problems, resume_point
from rljob_operator.policies.placement import is_refused, refusal_message
from rljob_operator.policies.pod_problem import pod_problem
from rljob_operator.policies.pods import stuck_pods
from rljob_operator.policies.release import release_note
from rljob_operator.times import seconds


def state(s: Snapshot, status: JobStatus) -> State:
    """The state, which is for display: no policy reads it."""
    attempt = status.attempt
    if status.outcome:
        return status.outcome
    if attempt is not None and is_open(attempt):
        return _state_of_open_attempt(s, status, attempt)
    if s.violations:
        return "Failed"
    if status.suspended:
        return "Suspended"
    return "Restarting" if attempt and not _was_suspended(attempt) else "Pending"


def _state_of_open_attempt(s: Snapshot, status: JobStatus, attempt: Attempt) -> State:
    if status.wants_suspend(s.spec_suspend) or attempt.reason == reasons.PREEMPTED:
        return "Suspending"
    if attempt.command != "run":
        return "Restarting"
    return "Running" if is_running(s, attempt) else "Starting"


def _was_suspended(attempt: Attempt) -> bool:
    """Whether the attempt ended for a suspension or a preemption, so that the next one is no restart."""
    return attempt.reason in (reasons.SUSPENDED, reasons.PREEMPTED)


def is_running(s: Snapshot, attempt: Attempt) -> bool:
    """Whether every member reports that it runs the attempt, or has finished it, and rank 0 has loaded its model and has enough rollouts."""
    return _has_loaded(s.progress_of(attempt)) and all(
        _is_member_running(s, m, attempt) for m in member_statuses(s, attempt)
    )


def _is_member_running(s: Snapshot, m: MemberStatus, attempt: Attempt) -> bool:
    report = s.report(m.member)
    running = report is not None and (report.state, report.attempt) == ("running", attempt.number)
    return m.result == "succeeded" or (running and not m.ended)


def _has_loaded(progress: Progress | None) -> bool:
    return progress is not None and progress.phase not in ("fetching", "loading", "waiting")


def postpone_spec(s: Snapshot, status: JobStatus) -> Change:
    """Writes an event for each generation that takes effect with the next attempt only."""
    seen = s.status.observed_generation == s.job.generation
    text = "" if seen else postponement(s, status)
    return Change(status, (Event("Normal", reasons.SPEC_POSTPONED, text),) if text else ())


def postponement(s: Snapshot, status: JobStatus) -> str:
    """A sentence about a spec that takes effect with the next attempt; empty: the newest spec is in force."""
    if s.spec is None or s.control is None or not is_open(status.attempt):
        return ""
    running = s.spec_of(status.attempt)
    scalable = s.control.spec.scheduling.facts.scalable
    if running is None or _next_attempt_part(running, scalable) == _next_attempt_part(s.spec, scalable):
        return ""
    same = status.attempt is not None and status.attempt.generation == s.job.generation
    what = "a change of the cluster's defaults" if same else f"spec generation {s.job.generation}"
    return f"{what} takes effect with the next attempt; `kubectl rljob restart {s.job.name}` starts one"


def _next_attempt_part(spec: RLJobSpec, scalable: bool) -> RLJobSpec:
    """The spec without the fields that apply at once."""
    fixed = sized(spec, 0, dict.fromkeys(spec.workers, 1)) if scalable else spec
    return fixed.model_copy(update={"suspend": False, "lifecycle": None})


MOST_NAMED = 5
"""Servers that are named together."""
LONGEST = 4096
"""Characters of a message."""


def message(s: Snapshot, status: JobStatus) -> str:
    unwritten = sentences(s.conflicts) if not status.outcome and is_open(status.attempt) else []
    said = (_message(s, status), *unwritten, stuck_pods(status.stuck_pods))
    return plain("; ".join(text for text in said if text))[:LONGEST]


def _message(s: Snapshot, status: JobStatus) -> str:
    if status.outcome == "Succeeded":
        export = f"; the Hugging Face model is at {status.progress.export}" if status.progress.export else ""
        return "; ".join([f"all {status.progress.steps} steps are done{export}", *status.progress.warnings])
    if status.outcome == "Failed":
        return _failed(status)
    if status.attempt and is_open(status.attempt):
        return _of_open_attempt(s, status, status.attempt)
    if s.violations:
        return lines(s.violations)
    if s.conflicts:
        return "; ".join(one_line(text) for text in sentences(s.conflicts))
    if status.suspended and not status.wants_suspend(s.spec_suspend):
        return f"resumes {resume_point(status)} when its former pods are gone"
    if status.suspended and status.asleep:
        return "asleep, since nobody has asked for anything for spec.service.idleSeconds; the next request wakes it"
    if status.suspended:
        return f"suspended {resume_point(status)}; resume it with `kubectl rljob resume {s.job.name}`"
    return _of_waiting_job(s, status)


def _failed(status: JobStatus) -> str:
    last = status.last_failure
    if status.outcome_message or last is None:
        return status.outcome_message
    if status.outcome_reason == reasons.REACHED_MAX_RESTARTS:
        return f"given up after {status.restarts.counted} failures in a row; attempt {last.attempt}: {_why(last)}"
    return _why(last)


def _why(last: LastFailure) -> str:
    return str(Cause(last.reason, last.pod, last.failure)) if last.failure else last.reason


def _of_open_attempt(s: Snapshot, status: JobStatus, attempt: Attempt) -> str:
    if attempt.command == "drain":
        return f"finishing the step and saving ({_command_reason(s, attempt)})"
    if attempt.command == "stop":
        failed = Cause(attempt.reason, attempt.failed_pod, attempt.failure) if attempt.failure else None
        cause = failed or _command_reason(s, attempt)
        return f"stopping attempt {attempt.number}: {cause}"
    progress = s.progress_of(attempt)
    if is_running(s, attempt):
        if s.violations:
            return f"runs on with its former spec; the new one is refused: {lines(s.violations)}"
        said = [*_awaited(progress), *_quarantined(progress), *status.progress.warnings]
        return "; ".join(filter(None, [postponement(s, status), *said]))
    if progress and progress.phase == "fetching":
        return f"fetching {progress.fetching}"
    if progress and progress.loading:
        return f"waiting for {_enumerated(progress.loading)} to load"
    if progress and progress.phase == "waiting":
        unplaced = [status.placement.problem] if status.placement and status.placement.problem else []
        absent = _uncreated_servers(s, s.uncreated)
        servers = [text for counted in (status.rollout, *status.pools.values()) for text in counted.unready]
        problems = "; ".join([*unplaced, *absent, *_pod_problems(s, status, _of_one_pod(s, status)), *servers])
        return f"waiting for {_servers(status)}" + (f": {problems}" if problems else "")
    starting = "; ".join([f"attempt {attempt.number} is starting{_start_point(status)}", *_awaited(progress)])
    return "; ".join(s.unreadable.values()) or starting


def _uncreated_servers(s: Snapshot, roles: Iterable[str]) -> list[str]:
    """Why servers of these roles do not exist. Members of a gang are named one by one."""
    return [f"{role} pods do not exist: {s.uncreated[role]}" for role in roles if not names.is_model_role(role)]


def _of_one_pod(s: Snapshot, status: JobStatus) -> tuple[Pod, ...]:
    """Servers that are one pod each, and sandboxes but those that were used. Of servers of several pods, the counts say what they wait for."""
    spec = s.spec_of(status.attempt)
    pods = (pod for pod in s.servers if spec and pod.role in spec.pods and server_nodes(spec, pod.role) == 1)
    return tuple(pod for pod in pods if not (names.is_sandbox_role(pod.role) and pod.exited.endswith(GIVEN_BACK)))


GIVEN_BACK = "(exit code 0)"
"""How the container of a sandbox ends."""


def _awaited(progress: Progress | None) -> list[str]:
    return [progress.awaiting] if progress and progress.awaiting else []


def _command_reason(s: Snapshot, attempt: Attempt) -> str:
    """Why the attempt is drained or stopped: `PodDeleting: demo-trainer-1`."""
    if attempt.reason != reasons.POD_DELETING:
        return attempt.reason
    pods = ((m.pod, s.pod(m)) for m in attempt.members)
    deleting = [name for name, pod in pods if pod and pod.deleting]
    others = f" and {len(deleting) - 1} more" if len(deleting) > 1 else ""
    return f"{attempt.reason}: {deleting[0]}{others}" if deleting else attempt.reason


def _quarantined(progress: Progress | None) -> list[str]:
    """Servers that get no policy for a while, with the reasons of the first."""
    out = [r for r in progress.rollouts if r.quarantine] if progress else []
    if not out:
        return []
    pods = ", ".join(r.pod for r in out[:MOST_NAMED]) + (" and others" if len(out) > MOST_NAMED else "")
    return [f"{pods} {'is' if len(out) == 1 else 'are'} left out for a while: {out[0].pod}: {out[0].quarantine}"]


def _start_point(status: JobStatus) -> str:
    """For example ` from step 40`; empty: the attempt starts from the initial weights."""
    return f" {resume_point(status)}" if status.checkpoint.latest or status.resume_step is not None else ""


def _servers(status: JobStatus) -> str:
    """Counts of the rollouts, workers, scorers and pools that generation waits for."""
    counts = {"rollouts": status.rollout} | status.asked_besides_rollouts
    said = [f"{word}, {counted.ready}/{counted.desired} answer" for word, counted in counts.items()]
    said += [
        f"sandboxes {name}, {sandboxes.ready}/{sandboxes.desired} free"
        for name, sandboxes in status.environments.items()
    ]
    return ", ".join(said)


def _of_waiting_job(s: Snapshot, status: JobStatus) -> str:
    last = status.last_failure
    again = bool(last and status.attempt and last.attempt == status.attempt.number)
    after = f"attempt {last.attempt} failed ({_why(last)}); " if last and again else _preempted(status)
    if s.now < seconds(status.restarts.not_before):
        full = "make room on the volume; " if again and last and last.reason == reasons.VOLUME_FULL else ""
        return f"{after}{full}the next starts at {status.restarts.not_before}"
    if status.placement and status.placement.problem:
        kept = _reserved(status.placement)
        return f"{after}waiting for capacity: {status.placement.problem}{kept}{release_note(s, status)}"
    problems = [*_uncreated_servers(s, refused_roles(s)), *_pod_problems(s, status, _awaited_launchers(s, status))]
    awaited = problems or list(s.unreadable.values()) or list(opening_problems(s, status))
    return (
        f"{after}waiting for {_launchers(s)} pods: {'; '.join(awaited[:3])}{release_note(s, status)}"
        if awaited
        else after.rstrip("; ")
    )


def _reserved(placement: PlacementStatus) -> str:
    """Nodes that are kept for the job, as the end of a sentence; empty: none are."""
    nodes = placement.reserved
    more = f" and {len(nodes) - MOST_NAMED} more" if nodes[MOST_NAMED:] else ""
    since = f"; waits since {placement.waiting_since}, and reserves "
    expected = f", expected at {placement.expected_at}" if placement.expected_at else ""
    return f"{since}{', '.join(nodes[:MOST_NAMED])}{more}{expected}" if nodes else ""


def _preempted(status: JobStatus) -> str:
    """The beginning of the sentence about a job that has left its nodes to another one; empty: it has not."""
    preemption = status.preemption
    return (
        f"left its nodes to {preemption.by} at {preemption.since} and goes on when there is room; "
        if preemption
        else ""
    )


def _awaited_launchers(s: Snapshot, status: JobStatus) -> tuple[Pod, ...]:
    """Pods that will be members of the next attempt. Nobody waits for spares."""
    following = next_target(s, status)
    if following is None:
        return s.launchers
    members = following.members
    return tuple(pod for pod in s.launchers if pod.ordinal in members.get(pod.role, ()))


def _launchers(s: Snapshot) -> str:
    """`trainer`, or `trainer, critic and reference`."""
    return _enumerated(s.spec.gang_sizes if s.spec else (names.ROLE_TRAINER,))


def _enumerated(roles: Iterable[str]) -> str:
    *others, last = roles
    return f"{', '.join(others)} and {last}" if others else last


def _pod_problems(s: Snapshot, status: JobStatus, pods: tuple[Pod, ...]) -> list[str]:
    """What keeps pods from being ready, by pod: image, quota, memory, nodes, or a failure that the pod reports."""
    refused = refusal_message(s, status)
    waiting = [pod for pod in pods if not (pod.ready or pod.deleting or (refused and is_refused(pod)))]
    found = ((pod.name, pod_problem(s, pod)) for pod in waiting)
    problems = [one_line(f"{name}: {why}") for name, why in found if why]
    return [one_line(refused), *problems] if refused else problems
