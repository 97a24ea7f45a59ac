"""What a job does: where its batches come from, what follows a trained step, and which objective learns. Each kind of task is a module here; the
loop and the engine know none of them."""

from collections.abc import Mapping
from typing import Literal, Protocol

from rljob_trainer.batch import Batch

Outcome = Literal["succeeded", "drained"]


class Source(Protocol):
    """Where the batches of a job come from. Every method is collective."""

    outcome: Outcome
    """Why there are no more batches, once `next` has returned None: all are trained, or the operator wants the pods back."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the source measured of the last batch."""
        ...

    def next(self, step: int) -> Batch | None:
        """This rank's part of the batch after `step`. Waits for it; None: there are no more."""
        ...

    def publish(self, step: int) -> None:
        """The policy of `step` was trained: whoever generates with it gets it."""
        ...

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step`, or begin to, when that is due."""
        ...

    def restored(self, step: int, digest: str) -> None:
        """The policy of `step` was restored, and its checkpoint says that this is its digest."""
        ...

    def digest(self, step: int) -> str:
        """Of the policy of `step`, the last one that was trained, as rollouts verify it; empty where there are none."""
        ...
