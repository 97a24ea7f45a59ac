import random

import pytest

from rljob_trainer.megatron.batching import plan


def flat(found: list[list[list[int]]]) -> list[int]:
    return sorted(i for rank in found for batch in rank for i in batch)


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_is_placed_once_within_the_budget_and_equally_often_on_every_rank(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 80))]
    alignment, ranks = draw.choice([1, 2, 4]), draw.choice([1, 2, 3, 8])
    found = plan(lengths, 64, alignment, ranks)
    assert flat(found) == list(range(len(lengths)))
    assert len(found) == ranks
    assert len({len(rank) for rank in found}) == 1
    for batch in (batch for rank in found for batch in rank):
        assert -(-sum(lengths[i] for i in batch) // alignment) * alignment <= 64
        assert batch == sorted(batch)


def test_loads_of_the_ranks_are_about_equal() -> None:
    draw = random.Random(0)
    lengths = [draw.randrange(100, 1000) for _ in range(256)]
    loads = [sum(lengths[i] for batch in rank for i in batch) for rank in plan(lengths, 4096, 2, 4)]
    assert max(loads) < 1.02 * min(loads)


def test_no_more_micro_batches_than_needed() -> None:
    assert [len(rank) for rank in plan([10] * 12, 40, 1, 1)] == [3]
    assert [len(rank) for rank in plan([10] * 12, 60, 1, 2)] == [1, 1]


def test_ranks_without_samples_get_empty_micro_batches() -> None:
    assert plan([5, 5], 64, 1, 4) == [[[0]], [[1]], [[]], [[]]]


def test_the_interleaved_schedule_gets_a_multiple_of_its_stages() -> None:
    found = plan([10] * 5, 20, 1, 2, multiple=4)
    assert [len(rank) for rank in found] == [4, 4]
    assert flat(found) == list(range(5))


def test_a_sample_longer_than_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match="a sample has 65 tokens, more than a micro-batch of 64 can hold"):
        plan([65], 65, 2, 1)
