"""The loop of every rank, on one screen. All ranks run it together; what they call is collective.

Rank 0's driver generates and scores in a process of its own, and answers when it is asked for a batch (tasks/rl.py). With spec.train.staleness
it has begun the next batches before this one trains. A periodic checkpoint is written while the next steps train, and becomes one between two of
them.
"""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_trainer.attempt import Attempt
    from rljob_trainer.tasks import Outcome


def run(job: "Attempt") -> "Outcome":
    """From the step that the attempt starts at to the last one, or to the one at which the operator wants the pods back."""
    step = job.begin()  # restored from a checkpoint, or 0
    while batch := job.source.next(step):  # waits; newcomers among the rollouts get weights meanwhile
        began = time.monotonic()
        measured = job.engine.measure(batch)  # scores of reward models, old and reference log-probabilities, values
        advantages = job.engine.objective.advantages(measured)
        job.teach(batch, advantages)  # a critic on ranks of its own learns while the policy does
        metrics = job.engine.update(measured, advantages)
        step = job.trained(batch, metrics, time.monotonic() - began)
        job.publish(step)
        job.evaluate(step)
        job.save(step)
        job.export(step)
    job.finish(step, job.source.outcome)
    return job.source.outcome
