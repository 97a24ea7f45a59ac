"""The loop of every rank, on one screen:

    generate -> score -> log-probs -> advantages -> train -> sync -> save

The driver generates and scores (driver/work.py) and tells rank 0 what is next; all ranks do it together. Log-probs, advantages and
training are one call of the engine. Whoever needs the policy gets it: all rollouts after each step, newcomers while others generate. With
spec.train.staleness 1 the driver has begun the next batch before this one trains, and publishes when both are done.
A periodic checkpoint is written beside the steps after it, and becomes one between two of them.
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rljob_trainer.attempt import Attempt


def run(attempt: "Attempt") -> Literal["succeeded", "drained"]:
    """From the step that the attempt starts at to the last step, or to the step at which the operator wants the pods back."""
    step = attempt.begin()
    while True:
        attempt.settle()
        match attempt.next():
            case {"do": "wait"}:
                continue
            case {"do": "train", "batch": batch}:
                step += 1
                attempt.train(step, batch)
            case {"do": "publish", "replicas": replicas}:
                attempt.sync(step, replicas)
                if attempt.save_due(step):
                    attempt.save(step, final=False)
            case {"do": "drain"}:
                attempt.save(step, final=True)
                attempt.end()
                return "drained"
            case {"do": "finish"}:
                attempt.save(step, final=True)
                attempt.end(export=attempt.export(step))
                return "succeeded"
            case unknown:
                raise ValueError(f"the driver said {unknown}")
