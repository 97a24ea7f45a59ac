"""Demonstrations are learnt from like what a policy wrote, and travel the same way."""

import numpy as np
import pytest

from rljob_trainer import arrays
from rljob_trainer.batch import Batch
from rljob_trainer.data.examples import Example
from rljob_trainer.trajectory import Segment, Trajectory, demonstration, prompt

USER = Segment(np.array([7, 8], np.int32), "environment")


def conversation() -> Trajectory:
    segments = (prompt([1, 2, 3]), demonstration([4, 5]), USER, demonstration([6]))
    return Trajectory(
        segments, prompt_index=9, group=0, sample=0, finish_reason="stop", reward=0.0, data_source="a.jsonl"
    )


def test_only_demonstrations_of_a_conversation_are_learnt() -> None:
    given = conversation()
    assert given.loss_mask.tolist() == [False] * 3 + [True, True, False, False, True]
    assert (given.prompt_length, given.response_length, given.learnt_length) == (3, 5, 3)
    assert not given.log_probs.any()
    assert Batch.of(1, [given], {}).columns.learnt_length.tolist() == [3]


def test_demonstrations_are_the_same_after_the_wire() -> None:
    batch = Batch.of(1, [conversation(), conversation()], {})
    empty = {name: np.zeros(0, kind) for name, kind in arrays.KINDS.items()}
    found = {name: np.concatenate([empty[name], *pieces]) for name, pieces in arrays.rows(batch.samples).items()}
    assert {name: len(array) for name, array in found.items()} == arrays.sizes(batch.samples)
    again = arrays.trajectories_of(found, batch.columns, range(2))
    assert tuple(again.values()) == batch.samples


@pytest.mark.parametrize(
    "variant",
    [
        (demonstration([1]),),
        (prompt([1]),),
        (prompt([1]), USER),
        (prompt([]), demonstration([1])),
        (prompt([1]), demonstration([2]), prompt([3])),
    ],
)
def test_an_example_that_cannot_be_learnt_is_refused(variant: tuple[Segment, ...]) -> None:
    with pytest.raises(AssertionError):
        Example(0, (variant,))
