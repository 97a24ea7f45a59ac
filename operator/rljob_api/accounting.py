"""What the GPUs that a job holds are used for: a part of its status, which the operator writes, and metrics and `kubectl rljob status` read.

A GPU is held from the moment that its pod is on a node, or was sent there, until the pod ends. A second of it counts for what the training loop was
doing, whichever pod holds the GPU: rollouts that are idle while the policy trains are a part of what training costs. So the sum of all phases is the
integral of the GPUs that were held.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from rljob_api.base import Wire
from rljob_api.protocol import PhaseOfRun

Phase = Literal["generate", "score", "train", "sync", "evaluate", "save", "starting", "waiting", "lost"]
"""What GPUs are held for. starting: an attempt runs and has no model, or too few rollouts, yet; waiting: no attempt runs; lost: steps that failures
undid, and the time from a failure to the end of the next step."""
PRODUCTIVE: tuple[Phase, ...] = ("generate", "score", "train", "sync", "evaluate")
"""What a run that nothing disturbs consists of, besides saving."""
PHASES: tuple[Phase, ...] = get_args(Phase)
OF_RUN: Mapping[PhaseOfRun, Phase] = {
    "fetching": "starting",
    "loading": "starting",
    "waiting": "starting",
    "evaluating": "evaluate",
    "generating": "generate",
    "scoring": "score",
    "training": "train",
    "syncing": "sync",
    "saving": "save",
    "serving": "train",
    "finishing": "save",
}
"""What each phase of the trainer counts for."""


class Accounting(Wire):
    """GPU-seconds of a job. What was counted never counts again: the numbers and the time up to which they count are written together."""

    until: str = ""
    """Up to when GPU-seconds are counted; empty: the job has held no GPU yet."""
    gpus: int = 0
    """GPUs that the job's pods hold since then."""
    phase: str = "waiting"
    """What they are held for since then, as far as that is known."""
    gpu_seconds: dict[str, float] = {}
    """GPU-seconds that were counted, by what they were held for."""
    unsaved: dict[str, float] = {}
    """The part of them that went into steps since the newest checkpoint: it counts as lost if the attempt fails."""
    reported: dict[str, float] = {}
    """Seconds of the open attempt, by the trainer's clock, that are counted."""
    recovering: bool = False
    """Whether no step was done since the last failure."""

    def at(self, passed: float) -> dict[str, float]:
        """GPU-seconds by phase, `passed` seconds after `until`."""
        more = {self.phase: self.gpus * passed} if self.gpus and passed > 0 else {}
        return added(self.gpu_seconds, more)


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Sums by phase, in thousandths, without those that are 0."""
    sums = {phase: round(one.get(phase, 0.0) + other.get(phase, 0.0), 3) for phase in PHASES}
    return {phase: amount for phase, amount in sums.items() if amount > 0}


def goodput(gpu_seconds: Mapping[str, float]) -> float | None:
    """The share of all GPU-seconds that went into steps which were kept; None: no GPU was held."""
    total = sum(gpu_seconds.values())
    return sum(gpu_seconds.get(phase, 0.0) for phase in PRODUCTIVE) / total if total else None


def divided(due: Mapping[str, float], present: str, seconds: float) -> dict[str, float]:
    """Divides an interval into phases.

    Args:
        due: seconds in each phase that the trainer has reported and nobody has counted
        present: the phase that continues, which gets what is left
        seconds: length of the interval, which is the sum of the result
    """
    due = {phase: amount for phase, amount in due.items() if amount > 0}
    total = sum(due.values())
    if total > seconds:  # what is reported late waits for the next interval
        return {phase: amount * seconds / total for phase, amount in due.items()}
    return added(due, {present: seconds - total})
