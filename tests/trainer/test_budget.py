"""A tenth of benchmarks/budget.py: what a step on many ranks costs outside of the GPUs, in counts and bytes instead of seconds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import budget, hand_over
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import PassCost
from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantages import ADVANTAGES, estimate
from rljob_trainer.wire.trajectory import same_bits

SIZE = budget.Size(samples=416, ranks=64)
COLUMNS = SIZE.columns()
WHOLE = budget.Size(samples=4096, ranks=512)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    elements = 0
    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in (found if isinstance(found, list | tuple) else [found]) if torch.is_tensor(x)]
        self.elements, self.operations = max([self.elements, *sizes]), self.operations + 1
        return found


@pytest.mark.parametrize("fields", budget.ESTIMATORS, ids=str)
def test_no_estimator_makes_more_than_a_ranks_own_tokens_or_loops_over_them(fields: dict[str, Any]) -> None:
    """A column of all tokens would be 8 times as large, and one padded to the longest response 30 times."""
    layout = next(layout for layout in SIZE.layouts if layout.data == 8)
    own = budget.episodes(COLUMNS, budget.largest_part(budget.planner(layout).plan(COLUMNS), COLUMNS))
    assert 7 * len(own.mask) < COLUMNS.response_length.sum()
    algorithm = AlgorithmSpec.model_validate(fields)
    with Largest() as made:
        estimate(own, algorithm, ADVANTAGES[algorithm.advantage])
    assert made.elements <= len(own.mask) + 1
    assert made.operations < 100 * len(COLUMNS) < len(own.mask) / 2, "some for each response, not for each token"


@pytest.mark.parametrize("layout", WHOLE.layouts, ids=str)
def test_ranks_wait_for_each_other_three_hundredths_of_their_time_at_most(layout: Layout) -> None:
    """At full size: a plan is made in the tenth of a second."""
    columns = WHOLE.columns()
    plan, by_tokens = (
        budget.planner(layout, work).plan(columns) for work in (budget.WORK, PassCost(token=1, square=0))
    )
    assert budget.computing(plan, columns) >= 0.97 > 0.85 > budget.computing(by_tokens, columns)
    assert sum(map(len, plan.rows_by_rank())) == WHOLE.samples


@pytest.mark.parametrize("layout", SIZE.layouts, ids=str)
def test_every_link_carries_what_plan_says(layout: Layout) -> None:
    """Real trajectories, as rank 0 sends them to the first rank of each other copy."""
    batch = hand_over.batch_of(hand_over.responses(COLUMNS))
    found = list(hand_over.links(batch, layout))
    assert len(found) == layout.data - 1
    for message, planned in found:
        assert planned <= message.raw < 1.01 * planned


def test_experts_of_tokens_are_bytes_and_never_json() -> None:
    """A thousand of them, as Qwen3-235B-A22B routes them: the message has as many characters as that of ten."""
    made = hand_over.routed(1000)
    batch = hand_over.batch_of(made)
    few, all_of_them = (hand_over.message(batch, range(count)) for count in (10, 1000))
    assert all_of_them.json - few.json < 30, "longer numbers"
    own = sum(t.routed_experts.nbytes for t in made if t.routed_experts is not None)
    assert own == 1000 * 63 * 94 * 8 and own < all_of_them.raw < 1.02 * own
    assert hand_over.read_back(batch) == batch.trajectories
    experts = [t.routed_experts for t in hand_over.read_back(batch).values()]
    assert all((one == t.routed_experts).all() for one, t in zip(experts, made, strict=True))


def test_experts_of_models_with_many_take_two_bytes_each() -> None:
    made = [replace(t, routed_experts=256 + t.routed_experts.astype(np.int16)) for t in hand_over.routed(10)]
    batch = hand_over.batch_of(made)
    assert 2 * 10 * 63 * 94 * 8 < hand_over.message(batch, range(10)).raw < 2.02 * 10 * 63 * 94 * 8
    found = [t.routed_experts for t in hand_over.read_back(batch).values()]
    assert all(same_bits(one, t.routed_experts) for one, t in zip(found, made, strict=True))


def test_agents_of_a_hundred_turns_take_seventeen_bytes_for_each_change_of_author() -> None:
    made = hand_over.agents(400, 100)
    batch = hand_over.batch_of(made)
    sent = hand_over.message(batch, range(len(made)))
    segments, tokens, written = 201, 24 + 100 * 32, 100 * 24
    assert sent.raw == 400 * (16 + 17 * segments + 4 * tokens + 4 * written)
    assert sent.json < 300
    assert hand_over.read_back(batch) == batch.trajectories
