"""Which spec is in force: the job's own, or the one that an open attempt was published with."""

from collections import Counter

from rljob_api import reasons
from rljob_api.protocol import Control
from rljob_api.sizing.layout import gang_sizes
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import LifecycleSpec
from rljob_api.status import Attempt


def is_open(attempt: Attempt | None) -> bool:
    """Whether there is an attempt and it has not ended."""
    return attempt is not None and not attempt.ended_at


def spec_of(attempt: Attempt | None, spec: RLJobSpec | None, control: Control | None) -> RLJobSpec | None:
    """The spec in force. An open attempt keeps the one that it was published with, except for the number of rollouts; otherwise the job's own
    applies.

    An attempt that had not been published when the job's spec became invalid is stopped, for which the former spec will do.
    """
    if attempt is None or not is_open(attempt) or control is None:
        return spec
    return published(spec, control) if control.attempt == attempt.number or spec is None else spec


def lifecycle_of(spec: RLJobSpec | None, control: Control | None) -> LifecycleSpec:
    """The limits in force: those of the newest valid spec."""
    newest = spec or (control.spec if control else None)
    return newest.lifecycle if newest else LifecycleSpec()


def is_void(attempt: Attempt | None, generation: int, spec: RLJobSpec | None, control: Control | None) -> bool:
    """Whether an open attempt can never run, so that it has to be stopped: the spec changed before the attempt was published, or its control message
    was deleted after that. Its members would read a spec that their pods were not made for.
    """
    if attempt is None or not is_open(attempt):
        return False
    effective = spec_of(attempt, spec, control)
    unpublished = control is not None and control.attempt < attempt.number
    misfit = effective is not None and gang_sizes(effective) != Counter(m.role for m in attempt.members)
    return misfit or (unpublished and attempt.generation != generation) or attempt.reason == reasons.SPEC_CHANGED


def published(spec: RLJobSpec | None, control: Control) -> RLJobSpec:
    """The spec of the control message. If its scheduler lets rollouts come and go, with the number of rollouts that the job wants now."""
    scalable = control.spec.scheduling.facts.scalable
    return scaled(control.spec, spec.rollout.replicas) if spec and scalable else control.spec


def scaled(spec: RLJobSpec, replicas: int) -> RLJobSpec:
    """The spec with this number of rollouts, but no fewer than its trainers wait for."""
    r = spec.rollout
    replicas = max(replicas, r.required)
    if replicas == r.replicas:  # a copy takes far longer
        return spec
    return spec.model_copy(update={"rollout": r.model_copy(update={"replicas": replicas})})
