"""What the GPUs that the job's pods hold are used for, in status.accounting (rljob_api/accounting.py).

The operator's clock says how long they are held, and the trainer's report how a running attempt divides that time: so the sum of the phases is right
whatever a report says. An interval is counted when something about it changes, and when progress is written anyway. What a job holds while it waits
needs no writes: whoever reads the status adds the time since. A number of GPUs that changes is written as seldom as other counts are; until then its
time counts with the former number.
"""

from collections.abc import Mapping

from rljob_api import reasons
from rljob_api.accounting import OF_RUN, Accounting, added, divided
from rljob_api.protocol import Progress
from rljob_api.status import Attempt, JobStatus
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.causes import member_status, recorded_cause
from rljob_operator.policies.change import Change, just_ended, set_
from rljob_operator.times import seconds, stamp


def account_end(s: Snapshot, status: JobStatus) -> Change:
    """Accounts for an attempt that has just ended, before the next one opens: that may be in the same reconcile, and hides why this one ended."""
    return account(s, status) if just_ended(s, status) else Change(status)


def account(s: Snapshot, status: JobStatus) -> Change:
    """After `account_end` no time has passed, and nothing is unsaved: it only says what the GPUs are held for from now on."""
    known = status.accounting
    if not (s.gpus or known.until):  # it has never held a GPU
        return Change(status)
    recovering = _is_recovering(s, status)
    same = (s.gpus, recovering, _situation(status)) == (known.gpus, known.recovering, _situation(s.status))
    if same and (status.progress, status.checkpoint) == (s.status.progress, s.status.checkpoint):
        return Change(status)
    counted = _counted(s, known)
    unsaved = {phase: amount * _unsaved_share(s, status) for phase, amount in counted.unsaved.items()}
    gpu_seconds = counted.gpu_seconds
    if just_ended(s, status):
        assert status.attempt is not None
        gpu_seconds = _without(gpu_seconds, unsaved) if _loses(s, status.attempt) else gpu_seconds
        unsaved = {}
    news: dict[str, object] = {"gpu_seconds": gpu_seconds, "unsaved": added(unsaved, {}), "recovering": recovering}
    news["phase"] = "lost" if recovering else _present(s, status.attempt)
    if not (is_open(status.attempt) and is_open(s.status.attempt)):
        news["reported"] = {}
    return Change(set_(status, accounting=counted.model_copy(update=news)))


def _situation(status: JobStatus) -> tuple[object, ...]:
    """What the meaning of the time depends on, besides what the trainer reports."""
    attempt = status.attempt
    return attempt and attempt.number, is_open(attempt), status.suspended, status.outcome


def _counted(s: Snapshot, known: Accounting) -> Accounting:
    """With the interval that ends now, in which the job was what its former status says."""
    until = stamp(s.now)
    passed = max(0.0, seconds(until) - seconds(known.until)) if known.until else 0.0
    attempt = s.status.attempt
    progress = s.progress_of(attempt) if is_open(attempt) else None
    spent = _spent(progress, known.reported, passed) if progress else {_present(s, attempt): passed}
    held = {phase: known.gpus * amount for phase, amount in spent.items()}
    if known.recovering:
        held = {"lost": sum(held.values())}
    return known.model_copy(
        update={
            "until": until,
            "gpus": s.gpus,
            "gpu_seconds": added(known.gpu_seconds, held),
            "unsaved": added(known.unsaved, held if progress and not known.recovering else {}),
            "reported": added(known.reported, spent if progress else {}),
        }
    )


def _spent(progress: Progress, counted: Mapping[str, float], passed: float) -> dict[str, float]:
    """How the trainer has divided an interval of this length."""
    reported = dict[str, float]()
    for phase, amount in progress.spent.items():
        reported[OF_RUN[phase]] = reported.get(OF_RUN[phase], 0.0) + amount
    due = {phase: amount - counted.get(phase, 0.0) for phase, amount in reported.items()}
    return divided(due, OF_RUN[progress.phase], passed)


def _present(s: Snapshot, attempt: Attempt | None) -> str:
    """What GPUs are held for now, if no failure has to be made up for."""
    if not is_open(attempt):
        return "waiting"
    progress = s.progress_of(attempt)
    return OF_RUN[progress.phase] if progress else "starting"


def _is_recovering(s: Snapshot, status: JobStatus) -> bool:
    """Whether the job has failed, continues, and has done no step since."""
    attempt = status.attempt
    if attempt is None or status.suspended or status.outcome:
        return False
    if just_ended(s, status):
        return status.accounting.recovering or recorded_cause(attempt) is not None
    progress = s.progress_of(attempt) if is_open(attempt) else None
    stepped = progress is not None and progress.started_from is not None and progress.step > progress.started_from
    return status.accounting.recovering and not stepped


def _unsaved_share(s: Snapshot, status: JobStatus) -> float:
    """The share of the unsaved time that a new checkpoint does not save: that of the steps behind it."""
    old, new = s.status.checkpoint.latest, status.checkpoint.latest
    progress = s.progress_of(status.attempt)
    if new is None or progress is None or (old and old.step >= new.step):
        return 1.0
    begun = max(old.step if old else 0, progress.started_from or 0)
    return max(0.0, (progress.step - new.step) / (progress.step - begun)) if progress.step > begun else 0.0


def _loses(s: Snapshot, attempt: Attempt) -> bool:
    """Whether the attempt's unsaved steps are lost: its rank 0 has not saved at its end, although nobody gave the steps up."""
    result = member_status(s, attempt, attempt.first).result if attempt.first else None
    return result not in ("succeeded", "drained") and attempt.reason != reasons.RESUME_REQUESTED


def _without(gpu_seconds: Mapping[str, float], lost: Mapping[str, float]) -> dict[str, float]:
    """The GPU-seconds, with some of them counted as lost."""
    undone = {phase: -amount for phase, amount in lost.items()}
    return added(gpu_seconds, undone | {"lost": sum(lost.values()) - lost.get("lost", 0.0)})
