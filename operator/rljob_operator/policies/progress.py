"""What pods report, copied to status: the progress of rank 0, and failures of servers.

Progress is written at once when something changes that people wait for, otherwise at most every `progress_interval` seconds.
"""

import hashlib
from pathlib import Path

from rljob_api import names, reasons
from rljob_api.protocol import Checkpoint, Failure, Progress
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, Restarts
from rljob_api.status_parts import CheckpointStatus, ProgressStatus, RolloutFailure
from rljob_api.text import one_line
from rljob_operator.cache.reports import coarse_phase
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, just_ended, set_
from rljob_operator.times import seconds, stamp

STABLE_STEPS = 3
"""Steps that an attempt has to do, and to save, to count as stable."""
DIGEST = 12
"""Characters that identify a failure of a server."""
MAIN_METRICS = (("reward", "reward/mean"), ("loss", "train/loss"))
"""Label and name of the metric in status.progress.metric: the first of these that the job reports."""


def record_progress(s: Snapshot, status: JobStatus) -> Change:
    progress, spec = s.progress_of(status.attempt), s.spec_of(status.attempt)
    if progress is None or spec is None or status.attempt is None or not is_open(s.status.attempt):
        return Change(status)
    old = status.progress
    new = (
        _status(progress, status.attempt.number, spec, s.now) if _started(progress) else _loading(progress, old, s.now)
    )
    checkpoint = _checkpoint(progress, spec, status.checkpoint)
    events = (
        _missing(old, progress, status)
        + _warned(old, new)
        + _saved(status.checkpoint.latest, checkpoint.latest, status.attempt)
    )
    status = set_(
        status,
        checkpoint=checkpoint,
        restarts=_stable(s, status, progress),
        resume_step=_resume_step(status, progress),
        lost_steps=status.lost_steps + _lost(old, progress, status),
        first_step_at=status.first_step_at or (stamp(s.now) if progress.step > (progress.started_from or 0) else ""),
    )
    if _same(new, old):
        return Change(status, events)
    due, latest = seconds(old.updated_at) + s.progress_interval, s.now + s.progress_interval + 1.0
    if urgent(new) == urgent(old) and not events and s.now < due <= latest and not just_ended(s, status):
        return Change(status, due=(due,))
    return Change(set_(status, progress=new), events)


def _started(p: Progress) -> bool:
    """Whether the attempt has chosen its checkpoint, or serves clients, who have their own. Before that it knows nothing of the run, and the former
    progress is kept."""
    return p.started_from is not None or p.phase == "serving"


def _loading(p: Progress, old: ProgressStatus, now: float) -> ProgressStatus:
    return old.model_copy(update={"phase": p.phase, "started_from": None, "updated_at": stamp(now)})


def _status(p: Progress, attempt: int, spec: RLJobSpec, now: float) -> ProgressStatus:
    steps = spec.train.steps or p.steps
    return ProgressStatus(
        attempt=attempt,
        step=p.step,
        steps=steps,
        text=f"{p.step}/{steps}" if steps else "",
        phase=p.phase,
        policy_step=p.policy_step,
        metric=next((f"{word} {p.metrics[name]:.3f}" for word, name in MAIN_METRICS if name in p.metrics), ""),
        metrics=p.metrics,
        history=p.history,
        pace=p.pace,
        saving=p.saving,
        evaluation=p.evaluation,
        export=p.export,
        started_from=p.started_from,
        backend=p.backend,
        warnings=p.warnings,
        worker_calls={role: load.calls for role, load in p.workers.items() if role in spec.workers},
        updated_at=stamp(now),
    )


def _checkpoint(p: Progress, spec: RLJobSpec, old: CheckpointStatus) -> CheckpointStatus:
    if not _started(p):
        return old
    kept = [checkpoint for checkpoint in p.checkpoints if _is_possible(checkpoint, p, spec)]
    return CheckpointStatus(latest=kept[-1] if kept else None, kept=kept)


def _is_possible(checkpoint: Checkpoint, p: Progress, spec: RLJobSpec) -> bool:
    """Whether the job can have such a checkpoint: of a step that is done, in its own directory. Only its pods can see whether it is there, so this is
    where trust begins (docs/security.md): the next attempt reports anew what it finds."""
    return checkpoint.step <= p.step and checkpoint.path == one_line(
        str(names.step_dir(Path(spec.checkpoint.path), checkpoint.step))
    )


def _saved(old: Checkpoint | None, new: Checkpoint | None, attempt: Attempt) -> tuple[Event, ...]:
    """An event for a new checkpoint, if this attempt has saved it and not only found it."""
    if new is None or new.attempt != attempt.number or (old and (old.step, old.attempt) == (new.step, new.attempt)):
        return ()
    return (Event("Normal", reasons.CHECKPOINT_SAVED, f"step {new.step} is saved at {new.path}"),)


def _warned(old: ProgressStatus, new: ProgressStatus) -> tuple[Event, ...]:
    """An event for each warning that is new."""
    return tuple(Event("Warning", reasons.TRAINER_WARNED, text) for text in new.warnings if text not in old.warnings)


def _missing(old: ProgressStatus, p: Progress, status: JobStatus) -> tuple[Event, ...]:
    """An event if the attempt has just started from an earlier checkpoint than the newest known one, although nobody asked for that."""
    known, step = status.checkpoint.latest, p.started_from
    if known is None or step is None or not _has_chosen(old, p, status) or step >= known.step:
        return ()
    assert status.attempt is not None
    text = f"attempt {status.attempt.number} resumes from step {step}: the checkpoint of step {known.step} is not at {known.path}"
    return (Event("Warning", reasons.CHECKPOINT_MISSING, text),)


def _same(a: ProgressStatus, b: ProgressStatus) -> bool:
    return a.model_copy(update={"updated_at": b.updated_at}) == b


def urgent(p: ProgressStatus) -> tuple[object, ...]:
    """What is written at once when it changes. The phases within a step are one here, since they change several times per step."""
    return (p.attempt, p.started_from, p.export, p.evaluation, p.backend, coarse_phase(p.phase), p.steps, p.warnings)


def _stable(s: Snapshot, status: JobStatus, p: Progress) -> Restarts:
    """Resets the counts of restarts in a row once an attempt has made, and saved, STABLE_STEPS steps, or has answered so many requests of clients
    that no other one had."""
    assert status.attempt is not None
    saved = any(c.attempt == status.attempt.number for c in p.checkpoints)
    answered = s.service.answered if s.service and s.service.attempt == status.attempt.number else 0
    stepped = saved and p.started_from is not None and p.step - p.started_from >= STABLE_STEPS
    if stepped or answered >= STABLE_STEPS:
        return status.restarts.model_copy(update={"counted": 0, "uncounted": 0})
    return status.restarts


def _lost(old: ProgressStatus, p: Progress, status: JobStatus) -> int:
    """Steps that have to be repeated, when an attempt has just chosen its checkpoint. Steps that a request gives up are not counted."""
    return max(0, old.step - (p.started_from or 0)) if _has_chosen(old, p, status) else 0


def _has_chosen(old: ProgressStatus, p: Progress, status: JobStatus) -> bool:
    """Whether the attempt has chosen its checkpoint since the last reconcile, and not by a request."""
    assert status.attempt is not None
    return p.started_from is not None and old.attempt != status.attempt.number and status.resume_step is None


def _resume_step(status: JobStatus, p: Progress) -> int | None:
    """The requested step, until the attempt that received it has started from there."""
    attempt = status.attempt
    assert attempt is not None
    given = attempt.resume_step == status.resume_step and attempt.reason != reasons.RESUME_REQUESTED
    return None if given and p.started_from is not None else status.resume_step


def record_server_failures(s: Snapshot, status: JobStatus) -> Change:
    """Records failures of rollouts and of pools' servers, which their pods start again: one event for each. Whether a failure is new is remembered
    for each pod, since pods have clocks of their own."""
    known = status.server_failures
    reports = ((pod.name, s.report(pod)) for pod in s.servers)
    failures = {name: (report.boot_id, report.failure) for name, report in reports if report and report.failure}
    digests = {pod: _digest(boot, failure) for pod, (boot, failure) in failures.items()}
    new = [RolloutFailure(pod=pod, failure=failures[pod][1]) for pod in failures if known.get(pod) != digests[pod]]
    status = set_(status, server_failures={p.name: known[p.name] for p in s.servers if p.name in known} | digests)
    if not new:
        return Change(status)
    events = tuple(Event("Warning", reasons.ROLLOUT_FAILED, failure_sentence(f)) for f in new)
    return Change(set_(status, last_rollout_failure=new[-1]), events)


def _digest(boot: str, failure: Failure) -> str:
    """Identifies a failure among those of one pod. Two of unknown time differ by what they say."""
    what = failure.time or (failure.exception, failure.message)
    return hashlib.sha256(repr((boot, what)).encode()).hexdigest()[:DIGEST]


def failure_sentence(last: RolloutFailure) -> str:
    return f"{last.pod}: {last.failure.sentence}"
