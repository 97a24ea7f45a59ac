import pytest
import torch

from rljob_trainer.megatron import context_parallel

STARTS = (0, 8, 24, 32)
"""Three sequences that four chunks, and the longest of them eight, divide."""


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_row_is_held_by_one_rank(ranks: int) -> None:
    held = torch.cat([context_parallel.rows(STARTS, ranks, rank) for rank in range(ranks)])
    assert sorted(held.tolist()) == list(range(32))
    assert {len(context_parallel.rows(STARTS, ranks, rank)) for rank in range(ranks)} == {32 // ranks}


def test_two_ranks_take_outer_and_inner_chunks_of_every_sequence() -> None:
    assert context_parallel.rows((0, 8), 2, 0).tolist() == [0, 1, 6, 7]
    assert context_parallel.rows((0, 8), 2, 1).tolist() == [2, 3, 4, 5]
    assert context_parallel.positions((0, 4, 12), 2, 1, torch.device("cpu")).tolist() == [1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_ranks_look_at_equally_many_keys(ranks: int) -> None:
    """A query at position p sees p + 1 keys."""
    seen = {int((context_parallel.rows((0, 64), ranks, rank) + 1).sum()) for rank in range(ranks)}
    assert seen == {64 * 65 // 2 // ranks}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gathered_shares_are_put_back_into_the_order_of_the_pack(ranks: int) -> None:
    pack = torch.arange(64) * 10
    shared = torch.cat([pack[context_parallel.rows((0, 16, 64), ranks, rank)] for rank in range(ranks)])
    assert torch.equal(shared[context_parallel.gathered((0, 16, 64), ranks)], pack)
