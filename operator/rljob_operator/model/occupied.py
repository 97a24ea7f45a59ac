"""A directory of checkpoints belongs to one job until that has ended. A new one that took it over would cut off the first, which then fails: its
fence is no longer the newest (trainer/rljob_trainer/checkpoint/fence.py)."""

from collections.abc import Iterable

from rljob_api.rules.engine import Violation
from rljob_api.rules.volumes import CHECKPOINTS, volume_of
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Verbatim
from rljob_operator.cache.jobs import CachedJob

AGAIN = 30.0
"""Seconds after which a job that was refused is looked at again: the other may have ended."""


def occupation(job: CachedJob, others: Iterable[CachedJob]) -> tuple[Violation, ...]:
    """Why a job that has had no attempt may not have its first one. A job that has had one keeps its directory, whoever else names it."""
    spec = job.validation.result.accepted
    if spec is None or job.status.attempt:
        return ()
    source = _source(spec)
    if source is None:
        return ()
    path = spec.checkpoint.path
    owner = next((other for other in others if _lives(other, job) and _writes_to(other, source, path)), None)
    if owner is None:
        return ()
    rule = f"is where job {owner.meta.name} writes, which has not ended"
    fix = "create this job again with another directory, or delete that one first"
    return (Violation(CHECKPOINTS, path, rule, fix),)


def _source(spec: RLJobSpec) -> Verbatim | None:
    """Of the volume with the checkpoints; None: no other job has it, or the spec does not say."""
    volume = volume_of(spec, spec.checkpoint.path)
    return None if volume is None or "emptyDir" in volume.source else volume.source


def _lives(other: CachedJob, job: CachedJob) -> bool:
    """Whether it is another job of the namespace that has begun and not ended."""
    if other.meta.namespace != job.meta.namespace or other.meta.uid == job.meta.uid:
        return False
    return other.status.attempt is not None and not other.status.outcome and not other.meta.deletion_timestamp


def _writes_to(other: CachedJob, source: Verbatim, path: str) -> bool:
    spec = other.validation.result.accepted
    return spec is not None and spec.checkpoint.path == path and _source(spec) == source
