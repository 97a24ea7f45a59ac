"""Ranks that have the tokens of some responses each estimate what one rank with all of them does: bit by bit, whoever has which."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantages import ADVANTAGES, Advantages, Estimator, estimate
from rljob_trainer.algorithm.episodes import Episodes, discounted
from rljob_trainer.algorithm.user_functions import Formulas
from trainer.algorithm import whole_step

RANKS = 3
LONG = 1000
SETTINGS: list[dict[str, Any]] = [
    *({"advantage": name} for name in ADVANTAGES),
    {"advantage": "reinforce++", "gamma": 0.99},
    {"advantage": "gae", "gamma": 0.999, "gaeLambda": 0.95},
    {"advantage": "gae", "gamma": 0.9, "gaeLambda": 0.0},
    {"rewardClip": 0.5, "advantageClip": 1.0},
]
WHITENING = """
def advantage(episodes):
    returns = episodes.accumulate(episodes.rewards_of_tokens(), 0 * episodes.mask, 1.0, 1.0)
    count, mean, squares = episodes.moments(returns)
    found = (returns - mean) * episodes.mask * (squares / (count - 1).clamp(min=1) + 1e-8).rsqrt()
    return found, returns
"""


def step(seed: int = 0, groups: int = 7, samples: int = 4, longest: int = LONG) -> Episodes:
    """Responses of very different lengths, with holes in their masks, one without any sampled token. Every group has a trajectory of two branches."""
    chance, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    n = groups * samples
    counts = torch.tensor([draw.choice((1, draw.randrange(1, longest), longest)) for _ in range(n)])

    def normal(count: int) -> torch.Tensor:
        return torch.randn(count, generator=chance, dtype=torch.float64)

    t = int(counts.sum())
    mask = (torch.rand(t, generator=chance) < 0.9).double()
    mask[: int(counts[0])] = 0.0
    return Episodes(
        rewards=normal(n),
        groups=torch.arange(n) // samples,
        counts=counts,
        mask=mask,
        token_rewards=0.1 * normal(t),
        values=normal(t),
        baselines=normal(n),
        own_rewards=normal(t),
        turn_rewards=0.1 * normal(t) * (torch.rand(t, generator=chance) < 0.01),
        trajectories=torch.arange(n) - (torch.arange(n) % samples == 1).long(),
    )


class Meeting:
    """The sum over ranks that are threads."""

    def __init__(self, ranks: int):
        self._barrier, self._given = threading.Barrier(ranks, timeout=120), dict[int, torch.Tensor]()

    def total(self, rank: int, values: torch.Tensor) -> torch.Tensor:
        self._given[rank] = values
        self._barrier.wait()
        found = sum(self._given.values(), torch.zeros_like(values))
        self._barrier.wait()
        return found


def share(whole: Episodes, owners: Sequence[int], rank: int, meeting: Meeting) -> Episodes:
    """The episodes with the tokens of the responses that the rank owns."""
    own = torch.tensor(owners) == rank
    of_tokens = own.repeat_interleave(whole.counts)
    held = {f.name: getattr(whole, f.name) for f in fields(whole)}
    tokens = {k: v[of_tokens] for k, v in held.items() if isinstance(v, torch.Tensor) and len(v) == len(of_tokens)}
    return replace(whole, **tokens, counts=whole.counts * own, over_ranks=lambda x: meeting.total(rank, x))


def estimated(whole: Episodes, owners: Sequence[int], spec: AlgorithmSpec, estimator: Estimator) -> list[Advantages]:
    """What each rank estimates."""
    meeting = Meeting(RANKS)
    with ThreadPoolExecutor(RANKS) as ranks:
        shares = [share(whole, owners, rank, meeting) for rank in range(RANKS)]
        return list(ranks.map(lambda own: estimate(own, spec, estimator), shares))


def joined(parts: Sequence[torch.Tensor], owners: Sequence[int], counts: torch.Tensor) -> torch.Tensor:
    """Tokens of all responses, in order, from those of each rank."""
    rows = [iter(part.split(counts[torch.tensor(owners) == rank].tolist())) for rank, part in enumerate(parts)]
    return torch.cat([next(rows[owner]) for owner in owners])


def owners_of(whole: Episodes, seed: int) -> list[list[int]]:
    """Random ones, and all responses on one rank, so that the others have none."""
    draw = random.Random(seed)
    return [[draw.randrange(RANKS) for _ in whole.rewards], [1] * len(whole.rewards)]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_advantages_do_not_depend_on_who_has_which_response(fields: dict[str, Any]) -> None:
    spec, whole = AlgorithmSpec.model_validate(fields), step()
    estimator = ADVANTAGES[spec.advantage]
    expected = estimate(whole, spec, estimator)
    for owners in owners_of(whole, seed=1):
        found = estimated(whole, owners, spec, estimator)
        assert torch.equal(joined([f.advantages for f in found], owners, whole.counts), expected.advantages)
        if expected.returns is not None:
            assert torch.equal(joined([f.returns for f in found], owners, whole.counts), expected.returns)


def test_functions_of_users_see_their_ranks_tokens_and_sums_over_the_step(tmp_path: Path) -> None:
    file = tmp_path / "algorithm.py"
    file.write_text(WHITENING)
    spec = AlgorithmSpec.model_validate(
        {"advantage": "python", "advantageFunction": {"path": str(file), "function": "advantage"}}
    )
    estimator, whole = Formulas.of(spec).advantages, step()
    expected = estimate(whole, AlgorithmSpec.model_validate({"advantage": "reinforce++"}), ADVANTAGES["reinforce++"])
    for owners in owners_of(whole, seed=2):
        found = [f.advantages for f in estimated(whole, owners, spec, estimator)]
        assert torch.equal(joined(found, owners, whole.counts), expected.advantages)


def test_what_is_not_discounted_is_summed_in_the_order_of_tokens_to_the_last_bit() -> None:
    whole = replace(step(), own_rewards=None)
    spec = AlgorithmSpec.model_validate({"advantage": "gae", "gamma": 1.0, "gaeLambda": 1.0})
    found = estimate(whole, spec, ADVANTAGES["gae"])
    raw = whole_step.differences(whole, whole.values, 1.0, 1.0)
    assert torch.equal(found.returns, whole_step.flat(whole, raw) + whole.values * whole.mask)
    spec = AlgorithmSpec.model_validate({"advantage": "remax"})
    returns = whole_step.flat(whole, whole_step.differences(whole, 0 * whole.mask, 1.0, 1.0))
    assert torch.equal(estimate(whole, spec, ADVANTAGES["remax"]).advantages, returns - whole.spread(whole.baselines))


@pytest.mark.parametrize(("gamma", "weight"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9), (0.5, 0.0)])
def test_doubling_and_sums_over_ranks_change_no_more_than_rounding(gamma: float, weight: float) -> None:
    whole = replace(step(3), own_rewards=None)
    spec = AlgorithmSpec.model_validate({"advantage": "gae", "gamma": gamma, "gaeLambda": weight})
    expected = whole_step.whitened(whole, whole_step.differences(whole, whole.values, gamma, gamma * weight))
    found = estimate(whole, spec, ADVANTAGES["gae"]).advantages
    torch.testing.assert_close(found, whole_step.flat(whole, expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999, 1.0])
def test_discounted_sums_of_rows_of_any_length_are_those_of_a_loop(decay: float) -> None:
    counts = [0, 1, 2, 3, 0, 255, 256, 257, LONG, 0]
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = []
    for row in values.split(counts):
        found = [0.0]
        for value in row.flip(0).tolist():
            found.append(value + decay * found[-1])
        expected += found[:0:-1]
    torch.testing.assert_close(
        discounted(values, torch.tensor(counts), decay),
        torch.tensor(expected, dtype=torch.float64),
        rtol=1e-12,
        atol=1e-12,
    )
