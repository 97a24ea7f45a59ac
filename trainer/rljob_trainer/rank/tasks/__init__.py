"""Tasks: where batches come from, who gets the policy after a step, and how it is evaluated. Each kind of task is a module here; the loop and the
engine know none of them.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from rljob_trainer.wire.batch import Batch

Outcome = Literal["succeeded", "drained"]


class Source(Protocol):
    """Where the batches of a job come from. Every method but `restored` is collective."""

    outcome: Outcome
    """Valid once `next` has returned None. succeeded: all steps are trained; drained: the operator wants the pods back."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last batch, such as how long the ranks waited for it."""
        ...

    def next(self, step: int) -> Batch | None:
        """Wait for the batch that trains step `step` + 1. Returns this rank's part of it, or None when there are no more batches."""
        ...

    def publish(self, step: int) -> None:
        """Send the policy of `step`, which was just trained, to the rollouts, if the task has some."""
        ...

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step`, or start to, if that is due."""
        ...

    def restored(self, step: int, digest: str) -> None:
        """Called on rank 0 only. The policy of `step` was restored from a checkpoint, whose manifest gives this digest of its weights."""
        ...

    def digest(self, step: int) -> str:
        """Digest of the weights of the policy of `step`, the last one that was trained; empty for tasks without rollouts."""
        ...
