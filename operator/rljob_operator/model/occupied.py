"""A directory of checkpoints belongs to one job until that has ended. A new one that took it over would cut off the first, which then fails: its
fence is no longer the newest (trainer/rljob_trainer/checkpoint/fence.py)."""

from collections.abc import Iterable

from rljob_api.rules.engine import Violation
from rljob_api.rules.volumes import CHECKPOINTS, volume_of
from rljob_api.spec import RLJobSpec
from rljob_operator.cache.jobs import CachedJob

AGAIN = 30.0
"""Seconds after which a job that was refused is looked at again: the other may have ended."""


def occupation(job: CachedJob, others: Iterable[CachedJob]) -> tuple[Violation, ...]:
    """Why a job that has had no attempt may not have its first one. A job that has had one keeps its directory, whoever else names it."""
    spec = job.validation.result.accepted
    if spec is None or job.status.attempt:
        return ()
    owner = next((other for other in others if _lives(other) and _shares(job, spec, other)), None)
    if owner is None:
        return ()
    rule = f"is where job {owner.meta.name} writes, which has not ended"
    return (
        Violation(
            CHECKPOINTS,
            spec.checkpoint.path,
            rule,
            "create this job again with another directory, or delete that one first",
        ),
    )


def _lives(other: CachedJob) -> bool:
    return other.status.attempt is not None and not other.status.outcome and not other.meta.deletion_timestamp


def _shares(job: CachedJob, spec: RLJobSpec, other: CachedJob) -> bool:
    """Whether both write to one directory of a volume, as far as their specs say so."""
    theirs = other.validation.result.accepted
    if theirs is None or other.meta.namespace != job.meta.namespace or other.meta.uid == job.meta.uid:
        return False
    path = spec.checkpoint.path
    if path != theirs.checkpoint.path:
        return False
    one, another = volume_of(spec, path), volume_of(theirs, path)
    return one is not None and another is not None and one.source == another.source and "emptyDir" not in one.source
