"""How many steps the epochs of a job are."""

import math

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec


def steps_of(spec: RLJobSpec, rows: int) -> int:
    """Of the whole job, with so many rows of training data: the last step may begin another epoch.

    With dynamic sampling, prompts that are left out are replaced by others, which are passed sooner than `epochs` says.
    """
    if spec.train.steps is not None:
        return spec.train.steps
    assert spec.train.epochs is not None, "one of both is given"
    return max(1, math.ceil(spec.train.epochs * rows / Amounts.of(spec).groups_per_step))


def with_steps(spec: RLJobSpec, steps: int) -> RLJobSpec:
    """With steps in place of epochs."""
    return spec.model_copy(update={"train": spec.train.model_copy(update={"steps": steps, "epochs": None})})
