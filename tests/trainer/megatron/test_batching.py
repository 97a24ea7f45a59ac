import random
import subprocess
import sys

import pytest

from api.specs import make_spec
from rljob_api.sizing.layout import Layout
from rljob_trainer.batch import Columns
from rljob_trainer.megatron import batching
from rljob_trainer.megatron.batching import plan, plan_step
from rljob_trainer.trajectory import Trajectory


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


def test_what_is_needed_at_least_is_never_more_than_is_needed_and_exact_for_equal_lengths() -> None:
    draw = random.Random(1)
    for _ in range(200):
        lengths = [draw.randrange(1, 60) for _ in range(draw.randrange(1, 60))]
        assert max(1, -(-sum(lengths) // 60)) <= batching._fewest(lengths, 60) <= len(plan(lengths, 60, 1, 1)[0])
    assert batching._fewest([3071] * 8192, 16384) == len(plan([3071] * 8192, 16384, 1, 1)[0]) == 1639


def test_ranks_without_samples_get_empty_micro_batches() -> None:
    assert plan([5, 5], 64, 1, 4) == [[[0]], [[1]], [[]], [[]]]


def test_the_interleaved_schedule_gets_a_multiple_of_its_stages() -> None:
    found = plan([10] * 5, 20, 1, 2, multiple=4)
    assert [len(rank) for rank in found] == [4, 4]
    assert flat(found) == list(range(5))


def test_a_sample_longer_than_the_budget_is_an_error() -> None:
    with pytest.raises(ValueError, match="a sample has 65 tokens, more than a micro-batch of 64 can hold"):
        plan([65], 65, 2, 1)


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
    found = plan_step(columns([5, 6, 7, 0, 1, 2, 3, 4]), spec, Layout(3))
    parts = [found.rows(rank) for rank in range(3)]
    assert sorted(row for rows in parts for row in rows) == [0, 1, 2, 4, 5, 6, 7]
    halves = [sorted(row for rank in cut for micro in rank for row in micro) for cut in found.mini_batches]
    assert halves == [[0, 1, 2], [4, 5, 6, 7]], "groups are not cut"


def test_where_reward_models_read_whole_sequences_their_last_token_finds_room() -> None:
    tight = {"promptsPerStep": 4, "samplesPerPrompt": 1, "tokensPerMicroBatch": 16}
    rewards = [{"model": {"path": "/m"}}]
    lengths = columns([5] * 4, samples=1)
    without, whole = (
        plan_step(lengths, spec, Layout(1)).mini_batches[0][0]
        for spec in (make_spec(train=tight), make_spec(train=tight, rewards=rewards))
    )
    assert [len(micro) for micro in without] == [2, 2], "7 tokens each are read"
    assert [len(micro) for micro in whole] == [2, 2], "8 tokens each"
    assert [
        len(micro) for micro in plan_step(columns([6] * 4, 1), make_spec(train=tight), Layout(1)).mini_batches[0][0]
    ] == [2, 2]
    tighter = plan_step(columns([6] * 4, 1), make_spec(train=tight, rewards=rewards), Layout(1)).mini_batches[0][0]
    assert [len(micro) for micro in tighter] == [1, 1, 1, 1], "two of 9 tokens do not fit"


@pytest.mark.parametrize("seed", range(10))
def test_pairs_lie_whole_in_one_micro_batch(seed: int) -> None:
    draw = random.Random(seed)
    spec = make_spec(train={"tokensPerMicroBatch": 40, "miniBatches": 2})
    pairs = columns([draw.randrange(1, 17) for _ in range(2 * draw.randrange(2, 12))])
    found = plan_step(pairs, spec, Layout(3), pairs=True)
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
        (cut,) = plan_step(whole, spec, Layout(ranks)).mini_batches
        assert flat(cut) == list(range(512))
        counts[key] = len(cut[0])
        loads[key] = [sum(int(whole.length[row]) for micro in rank for row in micro) for rank in cut]
        passes[key] = sum(len({row // 8 for row in micro}) for rank in cut for micro in rank)
    assert counts["images"] <= 1.1 * counts[None]
    assert max(loads["images"]) < 1.04 * min(loads["images"])
    assert passes["images"] < {4096: 0.6, 8192: 0.7, 16384: 0.4}[budget] * passes[None]


def test_a_pair_longer_than_the_budget_is_an_error_though_its_sequences_fit() -> None:
    spec = make_spec(train={"tokensPerMicroBatch": 16})
    assert plan_step(columns([6, 6]), spec, Layout(1), pairs=True).rows(0) == [0, 1]
    assert plan_step(columns([7, 6]), spec, Layout(1), with_last_token=True).rows(0) == [0, 1]
    with pytest.raises(ValueError, match="a sample has 17 tokens, more than a micro-batch of 16 can hold"):
        plan_step(columns([7, 6]), spec, Layout(1), pairs=True)
    with pytest.raises(ValueError, match="a sample has 18 tokens"):
        plan_step(columns([6, 6]), spec, Layout(1), pairs=True, with_last_token=True)


def test_a_step_without_a_response_cannot_be_planned() -> None:
    with pytest.raises(ValueError, match="no trajectories to train on"):
        plan_step(columns([0, 0]), make_spec(), Layout(1))


def test_the_plan_needs_no_torch() -> None:
    code = "import sys; import rljob_trainer.megatron.batching; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
