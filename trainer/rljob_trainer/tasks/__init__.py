"""What a job does: where its batches come from, and which objective they train. Each task is a module here; the loop and the engine know none
of them."""

from typing import Literal, Protocol

from rljob_trainer.batch import Batch

Outcome = Literal["succeeded", "drained"]


class Source(Protocol):
    """Where the batches of a job come from. Every method is collective."""

    outcome: Outcome
    """Why there are no more batches, once `next` has returned None: all are trained, or the operator wants the pods back."""

    def next(self, step: int) -> Batch | None:
        """This rank's part of the batch after `step`. Waits for it; None: there are no more."""
        ...
