"""Advantages against their formulas in plain Python, and what holds of all of them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantages import ADVANTAGES, READ_REWARD_TIMING, whiten
from rljob_trainer.algorithm.episodes import Episodes
from trainer.algorithm import restatements
from trainer.algorithm.cases import episodes, estimate, of_responses, table, taken, tensor
from trainer.algorithm.strategies import PROPERTY, QUARTERS, steps

GROUPED = ("grpo", "rloo", "reinforce++-baseline", "opo")


def spread(values: list[float], mask: list[list[float]]) -> list[list[float]]:
    return [[v * m for m in row] for v, row in zip(values, mask, strict=True)]


def restated(step: Episodes, spec: AlgorithmSpec) -> list[list[float]]:
    mask, given_rewards = (table(step, x).tolist() for x in (step.mask, step.token_rewards))
    groups = step.groups.tolist()
    rows = list(zip(step.rewards.tolist(), given_rewards, mask, strict=True))
    outcomes = [r + sum(x * m for x, m in zip(xs, ms, strict=True)) for r, xs, ms in rows]
    match spec.advantage:
        case "grpo":
            return spread(restatements.grpo(outcomes, groups, spec.group.divide_by_std, spec.group.leave_one_out), mask)
        case "rloo":
            return spread(restatements.rloo(outcomes, groups), mask)
        case "opo":
            return spread(restatements.opo(outcomes, groups, [sum(m) for m in mask]), mask)
        case "reinforce++-baseline":
            return restatements.whitened(spread(restatements.centred(outcomes, groups), mask), mask)
        case "reinforce++":
            return restatements.whitened([restatements.discounted(*row, spec.gamma) for row in rows], mask)
        case "remax":
            returns = [restatements.discounted(*row, 1.0) for row in rows]
            baselines = spread(step.baselines.tolist(), mask)
            return [[g - b for g, b in zip(gs, bs, strict=True)] for gs, bs in zip(returns, baselines, strict=True)]
    values = zip(rows, table(step, step.values).tolist(), strict=True)
    return restatements.whitened([restatements.gae(*row, v, spec.gamma, spec.gae_lambda) for row, v in values], mask)


SETTINGS: list[dict[str, Any]] = [
    *({"advantage": name} for name in ADVANTAGES),
    {"group": {"divideByStd": False}},
    {"group": {"leaveOneOut": True}},
    {"group": {"leaveOneOut": True, "divideByStd": False}},
    {"advantage": "reinforce++", "gamma": 0.5},
    {"advantage": "gae", "gamma": 0.9, "gaeLambda": 0.7},
]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@PROPERTY
@given(step=steps())
def test_an_estimator_is_its_formula(fields: dict[str, Any], step: Episodes) -> None:
    spec = AlgorithmSpec.model_validate(fields)
    expected = tensor(restated(step, spec))
    torch.testing.assert_close(estimate(step, **fields).advantages, expected, rtol=1e-6, atol=1e-8)


def test_every_estimator_of_the_spec_is_there() -> None:
    assert set(AlgorithmSpec.model_fields["advantage"].annotation.__args__) == {*ADVANTAGES, "python"}


@pytest.mark.parametrize("name", ADVANTAGES)
@PROPERTY
@given(step=steps(), order=st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(name: str, step: Episodes, order: Any) -> None:
    """A group need not lie together: samples come in any order and leave gaps where rewards failed."""
    shuffled = order.sample(range(len(step.rewards)), len(step.rewards))
    there, here = (estimate(e, advantage=name).advantages for e in (taken(step, shuffled), step))
    torch.testing.assert_close(there, here[shuffled], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ADVANTAGES)
@PROPERTY
@given(step=steps())
def test_what_the_mask_leaves_out_is_never_read(name: str, step: Episodes) -> None:
    """Observations of a multi-turn response, and padding: neither their values nor their rewards leak into a token's advantage."""
    absurd = {f: getattr(step, f) + 1e3 * (1 - step.mask) for f in ("values", "token_rewards")}
    found, expected = (estimate(e, advantage=name) for e in (replace(step, **absurd), step))
    torch.testing.assert_close(found.advantages, expected.advantages)
    assert not found.advantages[table(step, step.mask) == 0].any()
    if found.returns is not None:
        torch.testing.assert_close(found.returns, expected.returns)


@pytest.mark.parametrize("name", GROUPED)
@PROPERTY
@given(step=steps(), shift=st.sampled_from([-3.0, 5.0]))
def test_a_prompt_that_is_easier_for_all_changes_nothing(name: str, step: Episodes, shift: float) -> None:
    easier = replace(step, rewards=step.rewards + shift * (step.groups == 1))
    torch.testing.assert_close(
        estimate(easier, advantage=name).advantages, estimate(step, advantage=name).advantages, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize(
    "fields", [{"advantage": "rloo"}, {"advantage": "opo"}, {"group": {"divideByStd": False}}], ids=str
)
@PROPERTY
@given(step=steps())
def test_rewards_in_another_unit_scale_what_is_not_standardised(fields: dict[str, Any], step: Episodes) -> None:
    scaled = replace(step, rewards=7 * step.rewards, token_rewards=7 * step.token_rewards)
    torch.testing.assert_close(estimate(scaled, **fields).advantages, 7 * estimate(step, **fields).advantages)


def test_standardised_advantages_have_no_unit() -> None:
    for fields in ({}, {"group": {"leaveOneOut": True}}):
        one, other = (of_responses(episodes([u * 1, u * 3, u * 4]), **fields) for u in (1, 100))
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_a_group_of_one_and_a_group_of_equals_teach_nothing(name: str, leave_one_out: bool) -> None:
    """Whatever rounding makes of the mean of equal numbers."""
    step = episodes([0.7, 0.1, 0.1, 0.1, 0.3, 0.3], [3, -1, -1, -1, 8, 8])
    found = of_responses(step, advantage=name, group={"leaveOneOut": leave_one_out})
    assert found == pytest.approx([0.0] * 6, abs=1e-9)


def test_a_group_without_its_failed_samples_is_compared_with_those_left() -> None:
    """Two of eight rewards failed: the baseline is the mean of six, not of eight with two zeros."""
    assert of_responses(episodes([1, 1, 1, 0, 0, 0]), group={"divideByStd": False}) == [0.5] * 3 + [-0.5] * 3


def test_others_that_are_almost_equal_do_not_blow_up_an_advantage() -> None:
    found = of_responses(episodes([1.0, 0.1, 0.1 + 1e-12, 0.1 - 1e-12]), group={"leaveOneOut": True})
    assert found[0] == pytest.approx(0.9)


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("mask", [[[0.0, 0.0]], [[1.0, 0.0]]])
def test_a_step_of_no_or_one_token_is_finite(name: str, mask: list[list[float]]) -> None:
    step = episodes([2.0], mask=mask, values=[[1.0, 1.0]], baselines=[2.0])
    assert estimate(step, advantage=name).advantages.tolist() == [[0.0, 0.0]]


def test_whitening_is_over_the_whole_step() -> None:
    """Halves that are whitened alone lose which of them was better; two data-parallel ranks would have done so."""
    step, values = episodes([0.0, 0.0], mask=[[1.0, 1.0]] * 2), tensor([[1.0, 2.0], [5.0, 6.0]])
    whole = table(step, whiten(step, values.flatten()))
    assert (whole[0] < 0).all()
    assert (whole[1] > 0).all()
    assert whole.mean().item() == pytest.approx(0)
    assert whole.var(correction=1).item() == pytest.approx(1)
    halves = [whiten(taken(step, [i]), values[i]) for i in (0, 1)]
    torch.testing.assert_close(halves[0], halves[1])


@PROPERTY
@given(step=steps())
def test_what_the_critic_learns_is_not_whitened(step: Episodes) -> None:
    """With lambda 1 it is the discounted return itself, whatever the values were."""
    found = estimate(step, advantage="gae", gamma=0.9).returns
    tokens = (table(step, x).tolist() for x in (step.token_rewards, step.mask))
    rows = zip(step.rewards.tolist(), *tokens, strict=True)
    torch.testing.assert_close(found, tensor([restatements.discounted(*row, 0.9) for row in rows]))


def test_the_reward_comes_at_the_last_token_that_the_policy_chose() -> None:
    """Not at the end of the row, nor at a trailing observation; a response that was cut off ends there as well, without a bootstrap value."""
    step = episodes([1.0, 1.0], None, [[1, 1, 0, 0], [1, 0, 1, 0]], values=[[0, 0, 9, 9], [0, 9, 0, 9]])
    found = estimate(step, advantage="gae", gamma=0.5).returns
    assert found.tolist() == [[0.5, 1.0, 0.0, 0.0], [0.5, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ADVANTAGES)
@PROPERTY
@given(step=steps(), earned=st.lists(QUARTERS, min_size=35, max_size=35))
def test_what_a_turn_earns_is_a_part_of_the_reward_that_comes_earlier(
    name: str, step: Episodes, earned: list[float]
) -> None:
    """For estimators that know of time; the others see the same outcome."""
    turns = tensor(earned)[: len(step.mask)]
    moved = replace(
        step,
        rewards=step.rewards - step.total(turns * step.mask),
        token_rewards=step.token_rewards + turns,
    )
    found = estimate(replace(step, turn_rewards=turns), advantage=name).advantages
    expected = estimate(moved if name in READ_REWARD_TIMING else step, advantage=name).advantages
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", GROUPED)
@PROPERTY
@given(step=steps(), cut=st.integers(0, 5))
def test_a_trajectory_in_two_branches_counts_as_the_whole_one(name: str, step: Episodes, cut: int) -> None:
    """The first branch has the tokens before `cut`, the second those behind it."""
    count = len(step.rewards)
    before = (torch.arange(len(step.mask) // count) < cut).double().repeat(count)
    mask = torch.cat((step.mask * before, step.mask * (1 - before)))
    numbers = torch.arange(count).flip(0).repeat(2)
    twice = replace(taken(step, [*range(count)] * 2), mask=mask, trajectories=numbers)
    found = estimate(twice, advantage=name).advantages
    expected = estimate(step, advantage=name).advantages
    torch.testing.assert_close(found[:count] + found[count:], expected, rtol=1e-6, atol=1e-8)


def test_an_estimator_without_what_it_needs_says_so() -> None:
    for name, missing in (("gae", "values of a critic"), ("remax", "greedy responses")):
        with pytest.raises(ValueError, match=missing):
            estimate(episodes([1.0]), advantage=name)
