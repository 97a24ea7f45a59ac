"""Rank 0's progress, copied to status: at once when something people wait for changed, else at most every `progress_interval`."""

from rljob_api import reasons
from rljob_api.protocol import Checkpoint, Progress
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, CheckpointStatus, JobStatus, ProgressStatus, Restarts
from rljob_operator.cache.reports import coarse_phase
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, just_ended, set_
from rljob_operator.times import seconds, stamp

STABLE_STEPS = 3
"""An attempt that did so many steps and saved them has run stably."""
MAIN_METRICS = (("reward", "reward/mean"), ("loss", "train/loss"))
"""What a job is followed by, in one word, and its metric; the first that it reports."""


def current(s: Snapshot, attempt: Attempt | None) -> Progress | None:
    """What rank 0 of this attempt says."""
    member = attempt.first if attempt else None
    report = s.report(member) if member else None
    if report is None or member is None or attempt is None:
        return None
    return report.progress if report.boot_id == member.boot_id and report.attempt == attempt.number else None


def record_progress(s: Snapshot, status: JobStatus) -> Change:
    progress, spec = current(s, status.attempt), s.spec_of(status.attempt)
    if progress is None or spec is None or status.attempt is None or not is_open(s.status.attempt):
        return Change(status)
    old = status.progress
    new = (
        _status(progress, status.attempt.number, spec, s.now) if _started(progress) else _loading(progress, old, s.now)
    )
    checkpoint = _checkpoint(progress, status.checkpoint)
    events = _missing(old, progress, status) + _saved(status.checkpoint.latest, checkpoint.latest, status.attempt)
    status = set_(
        status,
        checkpoint=checkpoint,
        restarts=_stable(status, progress),
        resume_step=_resume_step(status, progress),
        lost_steps=status.lost_steps + _lost(old, progress, status),
        first_step_at=status.first_step_at or (stamp(s.now) if progress.step > (progress.started_from or 0) else ""),
    )
    if _same(new, old):
        return Change(status, events)
    due, latest = seconds(old.updated_at) + s.progress_interval, s.now + s.progress_interval + 1.0
    if _urgent(new) == _urgent(old) and not events and s.now < due <= latest and not just_ended(s, status):
        return Change(status, due=(due,))
    return Change(set_(status, progress=new), events)


def _started(p: Progress) -> bool:
    """Before it has chosen its checkpoint, an attempt knows nothing; what was known of the run stands."""
    return p.started_from is not None


def _loading(p: Progress, old: ProgressStatus, now: float) -> ProgressStatus:
    return old.model_copy(update={"phase": p.phase, "started_from": None, "updated_at": stamp(now)})


def _status(p: Progress, attempt: int, spec: RLJobSpec, now: float) -> ProgressStatus:
    steps = spec.train.steps or p.steps
    return ProgressStatus(
        attempt=attempt,
        step=p.step,
        steps=steps,
        text=f"{p.step}/{steps}",
        phase=p.phase,
        policy_step=p.policy_step,
        metric=next((f"{word} {p.metrics[name]:.3f}" for word, name in MAIN_METRICS if name in p.metrics), ""),
        metrics=p.metrics,
        history=p.history,
        evaluation=p.evaluation,
        export=p.export,
        started_from=p.started_from,
        backend=p.backend,
        updated_at=stamp(now),
    )


def _checkpoint(p: Progress, old: CheckpointStatus) -> CheckpointStatus:
    if not _started(p):
        return old
    return CheckpointStatus(latest=p.checkpoints[-1] if p.checkpoints else None, kept=p.checkpoints)


def _saved(old: Checkpoint | None, new: Checkpoint | None, attempt: Attempt) -> tuple[Event, ...]:
    """By this attempt. One that it found there is no news."""
    if new is None or new.attempt != attempt.number or (old and (old.step, old.attempt) == (new.step, new.attempt)):
        return ()
    return (Event("Normal", reasons.CHECKPOINT_SAVED, f"step {new.step} is saved at {new.path}"),)


def _missing(old: ProgressStatus, p: Progress, status: JobStatus) -> tuple[Event, ...]:
    """The attempt has chosen its checkpoint, and nobody asked for an earlier one than the newest that was known."""
    known, step = status.checkpoint.latest, p.started_from
    if known is None or step is None or not _has_chosen(old, p, status) or step >= known.step:
        return ()
    assert status.attempt is not None
    start = f"resumes from step {step}" if step else "starts from the initial weights"
    text = f"attempt {status.attempt.number} {start}: the checkpoint of step {known.step} is not at {known.path}"
    return (Event("Warning", reasons.CHECKPOINT_MISSING, text),)


def _same(a: ProgressStatus, b: ProgressStatus) -> bool:
    return a.model_copy(update={"updated_at": b.updated_at}) == b


def _urgent(p: ProgressStatus) -> tuple[object, ...]:
    """What is written at once. The phases within a step change several times per step and are not among it."""
    return (p.attempt, p.started_from, p.export, p.evaluation, p.backend, coarse_phase(p.phase), p.steps)


def _stable(status: JobStatus, p: Progress) -> Restarts:
    """Counted failures are forgiven once an attempt has made progress that its successor keeps."""
    assert status.attempt is not None
    saved = any(c.attempt == status.attempt.number for c in p.checkpoints)
    if status.restarts.counted and saved and p.started_from is not None and p.step - p.started_from >= STABLE_STEPS:
        return status.restarts.model_copy(update={"counted": 0})
    return status.restarts


def _lost(old: ProgressStatus, p: Progress, status: JobStatus) -> int:
    """Known when an attempt has chosen its checkpoint. Steps that somebody asked to give up are not lost."""
    return max(0, old.step - (p.started_from or 0)) if _has_chosen(old, p, status) else 0


def _has_chosen(old: ProgressStatus, p: Progress, status: JobStatus) -> bool:
    """Just now, and by its own rules."""
    assert status.attempt is not None
    return p.started_from is not None and old.attempt != status.attempt.number and status.resume_step is None


def _resume_step(status: JobStatus, p: Progress) -> int | None:
    """A request to go back is fulfilled once the attempt that it was given to has started from there."""
    attempt = status.attempt
    assert attempt is not None
    given = attempt.resume_step == status.resume_step and attempt.reason != reasons.RESUME_REQUESTED
    return None if given and p.started_from is not None else status.resume_step
