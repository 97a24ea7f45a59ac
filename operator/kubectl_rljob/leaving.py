"""Whether a job can leave its nodes without losing a step: who is asked to leave may have just begun one, finishes it, and saves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubectl_rljob.planning import Plan
from rljob_api.rules import Violation
from rljob_api.spec import RLJobSpec
from rljob_api.status_parts import ProgressStatus

SLACK = 1.25
"""By how much longer than the median a step may take, in a time that is proposed."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Seconds until a job has left."""

    step: float | None = None
    """Of a step; None: not known."""
    save: float | None = None
    """Of a checkpoint, until it is complete; None: not known."""
    source: str = "measured"

    @staticmethod
    def of(progress: ProgressStatus) -> "Leaving":
        """As the job's last steps and its last checkpoint took."""
        return Leaving(progress.pace, progress.saving)

    @property
    def seconds(self) -> float:
        return (self.step or 0.0) + (self.save or 0.0)

    def __str__(self) -> str:
        known = (("a step takes", self.step), ("a checkpoint", self.save))
        parts = " and ".join(f"{what} {seconds:.0f} s" for what, seconds in known if seconds is not None)
        return f"{parts} ({self.source})"

    def dump(self) -> dict[str, Any]:
        return {"step": self.step, "save": self.save, "source": self.source}


def expected(plan: Plan, measured: Leaving) -> Leaving:
    """As the job of this name has measured, or else by the model of a step's speed, where network cards are named."""
    if measured.step is not None:
        return measured
    modelled = plan.speed() if plan.cards else None
    if modelled is None:
        return Leaving()
    return Leaving(modelled.seconds, source="by the model of --suggest, without the checkpoint")


def too_short(spec: RLJobSpec, leaving: Leaving) -> Iterator[Violation]:
    """Times after which a step or its checkpoint would be cut off. Nothing of what is not known."""
    if leaving.step is None:
        return
    more = "" if leaving.save is not None else ", and what a checkpoint takes in addition"
    fix = f"set it to {math.ceil(leaving.seconds * SLACK)}{more}"
    drain = spec.lifecycle.drain_timeout_seconds
    if drain < leaving.seconds:
        rule = f"cuts off a suspension, a drain or a preemption by rljob: {leaving}"
        yield Violation("spec.lifecycle.drainTimeoutSeconds", str(drain), rule, fix)
    for role in spec.gang_sizes:
        grace = spec.template(role).termination_grace_period_seconds
        if grace < leaving.seconds:
            rule = f"cuts off who is deleted to preempt (by Kueue or kube-scheduler) or to empty a node: {leaving}"
            yield Violation(f"{spec.field_of(role)}.template.terminationGracePeriodSeconds", str(grace), rule, fix)
