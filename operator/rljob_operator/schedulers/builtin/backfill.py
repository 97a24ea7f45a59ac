"""Jobs that are done before a reservation needs its nodes may have them meanwhile (EASY backfilling: Lifka, JSSPP 1995).

A job that has neither done a step nor has a limit goes before no other: nobody knows how long it takes.
"""

import math

from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_operator.model.scheduling import Claim, SchedulingRequest
from rljob_operator.model.snapshot import is_open
from rljob_operator.times import seconds

SLACK, STARTING = 1.25, 300.0
"""By how much longer than its last steps suggest a job may take that goes before others, and the seconds that it may take to start."""


def remaining(spec: RLJobSpec, status: JobStatus, now: float) -> float | None:
    """Seconds that the job still needs its nodes, by the duration of its last steps or its limit; None: neither is known."""
    progress, life = status.progress, spec.lifecycle
    steps = spec.train.steps or progress.steps
    found = math.inf
    if progress.pace is not None and steps:
        found = max(0, steps - progress.step) * progress.pace
    if life.active_deadline_seconds is not None:
        attempt = status.attempt
        spent = status.active_seconds
        spent += max(0.0, now - seconds(attempt.started_at)) if attempt and is_open(attempt) else 0.0
        found = min(found, max(0.0, life.active_deadline_seconds - spent) + life.drain_timeout_seconds)
    return None if math.isinf(found) else found


def ends_before(one: SchedulingRequest, kept: Claim, now: float) -> bool:
    """Whether the job is done before the reservation's job may start. `now`: seconds since the epoch."""
    done = done_by(one, now)
    return done is not None and kept.starts is not None and done <= kept.starts


def done_by(one: SchedulingRequest, now: float) -> float | None:
    """When a job that starts now should be done at the latest, in seconds since the epoch; None: not known."""
    return None if one.lasts is None else now + STARTING + SLACK * one.lasts
