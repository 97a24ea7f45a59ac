"""The training loop, on one screen. All ranks run it together: everything that it calls is collective.

Alongside rank 0 runs the driver, a process of its own that generates and scores; the task asks it for batches (rank/tasks.py). With
spec.train.staleness the driver works on the next batches while this one trains. A periodic checkpoint is written while the next steps train, and
committed between two of them.
"""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_trainer.rank.attempt import RankAttempt
    from rljob_trainer.wire.calls import TaskOutcome


def run(job: "RankAttempt") -> "TaskOutcome":
    """Train until the last step, or until the operator drains the job. Returns which of the two it was."""
    step = job.begin()  # restored from a checkpoint, or 0
    while batch := job.task.next(step):  # waits; rollouts that are new get the weights meanwhile
        began = time.monotonic()
        measured = job.engine.measure(batch)  # rewards of reward models; old and reference log-probabilities; values
        advantages = job.engine.objective.advantages(measured)
        job.start_update(measured, advantages)  # a critic on a gang of its own learns meanwhile
        metrics = job.engine.update(measured, advantages)
        step = job.trained(measured, metrics, time.monotonic() - began)
        job.publish(step)
        job.evaluate(step)
        job.save(step)
        job.export(step)
    job.finish(step, job.task.outcome)
    return job.task.outcome
