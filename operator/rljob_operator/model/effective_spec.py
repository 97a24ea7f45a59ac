"""Which spec is in force: the job's own, or the one that an open attempt was published with."""

from collections import Counter

from rljob_api import reasons
from rljob_api.protocol import Control
from rljob_api.sizing.layout import gang_sizes
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import LifecycleSpec
from rljob_api.status import Attempt


def is_open(attempt: Attempt | None) -> bool:
    """Whether there is an attempt that has not ended."""
    return attempt is not None and not attempt.ended_at


def spec_of(
    attempt: Attempt | None, spec: RLJobSpec | None, control: Control | None, scalable: bool
) -> RLJobSpec | None:
    """An open attempt keeps the spec it was published with, except for the number of rollouts; otherwise the job's own applies.

    An attempt that was not published before the spec became invalid is stopped, for which a former spec is enough.
    """
    if attempt is None or not is_open(attempt) or control is None:
        return spec
    return published(spec, control, scalable) if control.attempt == attempt.number or spec is None else spec


def lifecycle_of(spec: RLJobSpec | None, control: Control | None) -> LifecycleSpec:
    """The limits in force: those of the newest spec that is valid."""
    newest = spec or (control.spec if control else None)
    return newest.lifecycle if newest else LifecycleSpec()


def is_void(attempt: Attempt | None, generation: int, spec: RLJobSpec | None, control: Control | None) -> bool:
    """Whether an open attempt was written but not published before the spec changed, or its control message was deleted after that.

    Its members would read a spec that their pods were not made for, perhaps one for more or fewer of them.
    """
    if attempt is None or not is_open(attempt):
        return False
    effective = spec_of(attempt, spec, control, scalable=False)
    unpublished = control is not None and control.attempt < attempt.number
    misfit = effective is not None and gang_sizes(effective) != Counter(m.role for m in attempt.members)
    return misfit or (unpublished and attempt.generation != generation) or attempt.reason == reasons.SPEC_CHANGED


def published(spec: RLJobSpec | None, control: Control, scalable: bool) -> RLJobSpec:
    """The spec of the control message; if its scheduler lets rollouts come and go, with the number of them that the job wants now."""
    return scaled(control.spec, spec.rollout.replicas) if spec and scalable else control.spec


def scaled(spec: RLJobSpec, replicas: int) -> RLJobSpec:
    """With so many rollouts, or as many as its trainers wait for."""
    r = spec.rollout
    replicas = max(replicas, r.required)
    if replicas == r.replicas:  # far faster than a copy
        return spec
    return spec.model_copy(update={"rollout": r.model_copy(update={"replicas": replicas})})
