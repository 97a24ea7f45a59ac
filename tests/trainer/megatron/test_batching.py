import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from api.specs import make_spec
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import PassCost
from rljob_trainer.megatron import batching
from rljob_trainer.megatron.batching import Planner, plan
from rljob_trainer.wire.batch import Columns
from rljob_trainer.wire.trajectory import Trajectory


def flat(found: list[list[list[int]]]) -> list[int]:
    return sorted(i for rank in found for batch in rank for i in batch)


@pytest.mark.parametrize("seed", range(20))
def test_every_sample_is_placed_once_within_the_budget_and_equally_often_on_every_rank(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 80))]
    alignment, ranks = draw.choice([1, 2, 4]), draw.choice([1, 2, 3, 8])
    found = plan(lengths, lengths, 64, alignment, ranks)
    assert flat(found) == list(range(len(lengths)))
    assert len(found) == ranks
    assert len({len(rank) for rank in found}) == 1
    for batch in (batch for rank in found for batch in rank):
        assert -(-sum(lengths[i] for i in batch) // alignment) * alignment <= 64
        assert batch == sorted(batch)


def test_loads_of_the_ranks_are_about_equal() -> None:
    draw = random.Random(0)
    lengths = [draw.randrange(100, 1000) for _ in range(256)]
    loads = [sum(lengths[i] for batch in rank for i in batch) for rank in plan(lengths, lengths, 4096, 2, 4)]
    assert max(loads) < 1.02 * min(loads)


def test_no_more_micro_batches_than_needed() -> None:
    assert [len(rank) for rank in plan([10] * 12, [10] * 12, 40, 1, 1)] == [3]
    assert [len(rank) for rank in plan([10] * 12, [10] * 12, 60, 1, 2)] == [1, 1]


def test_what_is_needed_at_least_is_never_more_than_is_needed_and_exact_for_equal_lengths() -> None:
    draw = random.Random(1)
    for _ in range(200):
        lengths = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 60))]
        assert (
            max(1, -(-sum(lengths) // 60)) <= batching._fewest(lengths, 60) <= len(plan(lengths, lengths, 60, 1, 1)[0])
        )
    assert batching._fewest([3071] * 8192, 16384) == len(plan([3071] * 8192, [3071] * 8192, 16384, 1, 1)[0]) == 1639


def test_ranks_without_samples_get_empty_micro_batches() -> None:
    assert plan([5, 5], [5, 5], 64, 1, 4) == [[[0]], [[1]], [[]], [[]]]


def test_the_interleaved_schedule_gets_a_multiple_of_its_stages() -> None:
    found = plan([10] * 5, [10] * 5, 20, 1, 2, multiple=4)
    assert [len(rank) for rank in found] == [4, 4]
    assert flat(found) == list(range(5))


def test_a_sample_longer_than_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match="a sample has 65 tokens, more than a micro-batch of 64 can hold"):
        plan([65], [65], 65, 2, 1)


def modelled(found: list[list[list[int]]], costs: Sequence[int], waiting: int) -> float:
    """The part of their time that ranks compute if every `waiting` of them wait for each other after each micro-batch, and all of them at the end."""
    of_micros = np.array([[sum(costs[i] for i in micro) for micro in rank] for rank in found], float)
    together = of_micros.reshape(-1, waiting, of_micros.shape[1]).max(1).sum(1)
    return of_micros.sum() / (len(found) * together.max())


@pytest.mark.parametrize("ranks", [8, 32])
@pytest.mark.parametrize("median", [11_000, 26_000])
def test_ranks_that_wait_for_each_other_get_micro_batches_of_equal_cost(median: int, ranks: int) -> None:
    """Lengths and shape of a long-context run: a sequence of 64k tokens costs twice as much as the same tokens in short ones."""
    chance = np.random.default_rng(median)
    lengths = np.minimum(65536, chance.lognormal(np.log(median), 0.9, 4096)).astype(int).tolist()
    work = PassCost(token=44_000_000_000, square=94 * 2 * 64 * 128)
    costs = [work.of(length) for length in lengths]
    by_cost, by_tokens = (plan(lengths, given, 65536, 1, ranks) for given in (costs, lengths))
    assert flat(by_cost) == list(range(4096))
    assert len(by_cost[0]) == len(by_tokens[0])
    assert max(sum(lengths[i] for i in micro) for rank in by_cost for micro in rank) <= 65536
    assert modelled(by_tokens, costs, 8) < 0.9 < 0.97 < modelled(by_cost, costs, 8)
    sums = [sum(costs[i] for micro in rank for i in micro) for rank in by_cost]
    assert max(sums) < 1.01 * min(sums)


def test_the_model_says_what_costs_more_than_its_tokens() -> None:
    """Two sequences of 40 tokens are more tokens than one of 70, and less attention. The second round is dealt in the other direction."""
    spec, lengths = make_spec(train={"tokensPerMicroBatch": 80}), columns([68, 38, 38, 68, 38, 38], samples=1)
    by_attention = Planner(spec, Layout(2), work=PassCost(token=0, square=1)).plan(lengths)
    assert by_attention.mini_batches == ([[[0], [2, 5]], [[3], [1, 4]]],)
    by_tokens = Planner(spec, Layout(2), work=PassCost(token=1, square=0)).plan(lengths)
    assert by_tokens.mini_batches == ([[[1, 4], [3]], [[2, 5], [0]]],)


def columns(responses: list[int], samples: int = 2) -> Columns:
    """Prompts of 3 tokens with so many response tokens, `samples` of each prompt."""
    return Columns.of(
        [
            Trajectory.of_response(
                [1] * 3,
                [2] * n,
                [0.0] * n,
                0,
                prompt_index=i // samples,
                group=i // samples,
                sample=i % samples,
                finish_reason="stop",
                reward=0.0,
                data_source="",
            )
            for i, n in enumerate(responses)
        ]
    )


def test_the_parts_of_the_ranks_are_the_step_but_for_trajectories_without_a_response() -> None:
    spec = make_spec(train={"promptsPerStep": 4, "samplesPerPrompt": 2, "miniBatches": 2, "tokensPerMicroBatch": 30})
    found = Planner(spec, Layout(3)).plan(columns([5, 6, 7, 0, 1, 2, 3, 4]))
    parts = [found.rows(rank) for rank in range(3)]
    assert sorted(row for rows in parts for row in rows) == [0, 1, 2, 4, 5, 6, 7]
    halves = [sorted(row for rank in cut for micro in rank for row in micro) for cut in found.mini_batches]
    assert halves == [[0, 1, 2], [4, 5, 6, 7]], "groups are not cut"


def test_where_reward_models_read_whole_sequences_their_last_token_finds_room() -> None:
    tight = {"promptsPerStep": 4, "samplesPerPrompt": 1, "tokensPerMicroBatch": 16}
    rewards = [{"model": {"path": "/m"}}]
    lengths = columns([5] * 4, samples=1)
    without, whole = (
        Planner(spec, Layout(1)).plan(lengths).mini_batches[0][0]
        for spec in (make_spec(train=tight), make_spec(train=tight, rewards=rewards))
    )
    assert [len(micro) for micro in without] == [2, 2], "7 tokens each are read"
    assert [len(micro) for micro in whole] == [2, 2], "8 tokens each"
    assert [
        len(micro) for micro in Planner(make_spec(train=tight), Layout(1)).plan(columns([6] * 4, 1)).mini_batches[0][0]
    ] == [2, 2]
    tighter = Planner(make_spec(train=tight, rewards=rewards), Layout(1)).plan(columns([6] * 4, 1)).mini_batches[0][0]
    assert [len(micro) for micro in tighter] == [1, 1, 1, 1], "two of 9 tokens do not fit"


@pytest.mark.parametrize("seed", range(10))
def test_pairs_lie_whole_in_one_micro_batch(seed: int) -> None:
    draw = random.Random(seed)
    spec = make_spec(train={"tokensPerMicroBatch": 40, "miniBatches": 2})
    pairs = columns([draw.randrange(1, 17) for _ in range(2 * draw.randrange(2, 12))])
    found = Planner(spec, Layout(3), pairs=True).plan(pairs)
    micros = [micro for cut in found.mini_batches for rank in cut for micro in rank]
    assert sorted(row for micro in micros for row in micro) == list(range(len(pairs)))
    assert all(micro[1::2] == [row + 1 for row in micro[::2]] for micro in micros)
    assert not any(row % 2 for micro in micros for row in micro[::2])
    assert max(sum(int(pairs.length[row]) - 1 for row in micro) for micro in micros) <= 40


@pytest.mark.parametrize("ranks", [1, 4, 8])
@pytest.mark.parametrize("budget", [4096, 8192, 16384])
def test_samples_with_the_same_images_share_micro_batches_of_which_hardly_more_are_needed(
    budget: int, ranks: int
) -> None:
    """So that their images go through the tower once for several of them."""
    draw = random.Random(budget + ranks)
    whole = columns([draw.randrange(300, 560) for _ in range(512)], samples=8)
    train = {"promptsPerStep": 64, "samplesPerPrompt": 8, "tokensPerMicroBatch": budget}
    counts, loads, passes = {}, {}, {}
    for key in (None, "images"):
        spec = make_spec(train=train, data={"train": ["/data/train.parquet"], "imageKey": key})
        (cut,) = Planner(spec, Layout(ranks)).plan(whole).mini_batches
        assert flat(cut) == list(range(512))
        counts[key] = len(cut[0])
        loads[key] = [sum(int(whole.length[row]) for micro in rank for row in micro) for rank in cut]
        passes[key] = sum(len({row // 8 for row in micro}) for rank in cut for micro in rank)
    assert counts["images"] <= 1.1 * counts[None]
    assert max(loads["images"]) < 1.04 * min(loads["images"])
    assert passes["images"] < {4096: 0.6, 8192: 0.7, 16384: 0.4}[budget] * passes[None]


def test_a_pair_longer_than_the_budget_is_an_error_though_its_sequences_fit() -> None:
    spec = make_spec(train={"tokensPerMicroBatch": 16})
    assert Planner(spec, Layout(1), pairs=True).plan(columns([6, 6])).rows(0) == [0, 1]
    assert Planner(spec, Layout(1), with_last_token=True).plan(columns([7, 6])).rows(0) == [0, 1]
    with pytest.raises(ValueError, match="a sample has 17 tokens, more than a micro-batch of 16 can hold"):
        Planner(spec, Layout(1), pairs=True).plan(columns([7, 6]))
    with pytest.raises(ValueError, match="a sample has 18 tokens"):
        Planner(spec, Layout(1), pairs=True, with_last_token=True).plan(columns([6, 6]))


def test_a_step_without_a_response_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="no trajectories to train on"):
        Planner(make_spec(), Layout(1)).plan(columns([0, 0]))


def test_the_plan_needs_no_torch() -> None:
    code = "import sys; import rljob_trainer.megatron.batching; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
