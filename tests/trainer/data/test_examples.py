"""Demonstrations are learnt from like what a policy wrote, and travel the same way."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.data.examples import Example
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.images import Image
from rljob_trainer.wire.trajectory import Segment, Trajectory, demonstration, prompt

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


def image(grid: tuple[int, int]) -> Image:
    return Image(np.arange(grid[0] * grid[1] * 6, dtype=np.float32).reshape(-1, 6), grid, 2)


def test_demonstrations_are_the_same_after_the_wire() -> None:
    batch = Batch.of(1, [conversation(), conversation()], {})
    assert_same_after_the_wire(batch)


def test_images_are_the_same_after_the_wire_and_travel_once() -> None:
    first, second = image((2, 4)), image((4, 4))
    seen = replace(conversation(), segments=(prompt([1, 2, 3, 4], [(1, first), (3, second)]), demonstration([4])))
    later = Segment(np.array([7, 8], np.int32), "environment", images=((1, second),))
    shared = replace(
        conversation(), segments=(prompt([5], [(0, first)]), demonstration([6]), later, demonstration([7]))
    )
    batch = Batch.of(1, [seen, conversation(), shared], {})
    assert shared.images == [(0, first), (3, second)]
    assert arrays.sizes(batch.samples)["pixels"] == first.pixels.size + second.pixels.size
    assert_same_after_the_wire(batch)


def assert_same_after_the_wire(batch: Batch) -> None:
    empty = {name: np.zeros(0, kind) for name, kind in arrays.KINDS.items()}
    found = {name: np.concatenate([empty[name], *pieces]) for name, pieces in arrays.rows(batch.samples).items()}
    assert {name: len(array) for name, array in found.items()} == arrays.sizes(batch.samples)
    again = arrays.trajectories_of(found, batch.columns, range(len(batch.samples)))
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
