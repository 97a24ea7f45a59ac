"""A tenth of benchmarks/budget.py: what a step on many ranks costs outside of the GPUs, in counts and bytes instead of seconds."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import budget
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import Work
from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantages import ADVANTAGES, estimate

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
    plan, by_tokens = (budget.planner(layout, work).plan(columns) for work in (budget.WORK, Work(token=1, square=0)))
    assert budget.computing(plan, columns) >= 0.97 > 0.85 > budget.computing(by_tokens, columns)
    assert sum(map(len, plan.rows_by_rank())) == WHOLE.samples
