"""Policy and value losses: gradients, bounds, formulas in plain Python."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import AlgorithmSpec, Clip
from rljob_trainer.algorithm.losses import LOSSES, value_loss
from trainer.algorithm import restatements
from trainer.algorithm.cases import algorithm, columns, responses, tensor
from trainer.algorithm.strategies import PROPERTY

NUMBERS = st.floats(-2, 2, allow_subnormal=False)


def losses(name: str, log_probs: torch.Tensor, advantages: torch.Tensor, *lengths: int, **clip: Any) -> torch.Tensor:
    tokens = columns(log_probs=log_probs, advantages=advantages)
    return LOSSES[name](tokens, responses(*lengths), Clip.model_validate(clip)).loss


def gradient(loss: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, log_probs)[0]


def test_every_loss_of_the_spec_is_there() -> None:
    assert set(AlgorithmSpec.model_fields["loss"].annotation.__args__) == {*LOSSES, "python"}


@PROPERTY
@given(
    log_ratio=NUMBERS,
    advantage=NUMBERS,
    low=st.floats(0.01, 0.9),
    high=st.floats(0.01, 2),
    dual=st.none() | st.floats(1.01, 4),
)
def test_the_clipped_surrogate_is_its_cases(
    log_ratio: float, advantage: float, low: float, high: float, dual: float | None
) -> None:
    found = losses("ppo", tensor([log_ratio - 1]), tensor([advantage]), 1, low=low, high=high, dual=dual)
    expected = restatements.surrogate(math.exp(log_ratio), advantage, low, high, dual)
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_at_the_start_every_loss_has_the_policy_gradient(name: str) -> None:
    """-A grad log policy, before anything can be clipped."""
    log_probs = torch.full((3,), -1.0, dtype=torch.float64, requires_grad=True)
    found = losses(name, log_probs, tensor([2.0, 2.0, -0.5]), 2, 1)
    assert gradient(found.sum(), log_probs).tolist() == [-2.0, -2.0, 0.5]


def test_the_gradient_of_ppo_is_that_of_finite_differences() -> None:
    log_probs = tensor([-1.1, -0.4, -1.9, -0.95]).requires_grad_()
    advantages = tensor([1.0, 1.0, -2.0, 0.3])
    assert torch.autograd.gradcheck(lambda x: losses("ppo", x, advantages, 4, dual=3.0), log_probs)


def test_the_gradient_of_gspo_is_that_of_its_sequence_form() -> None:
    """Token losses with weights 1 / |y| against finite differences of -A (policy(y) / old policy(y))^(1 / |y|)."""
    start, lengths, advantage, step = [-1.3, -0.8, -1.1, -0.7, -1.2], (2, 3), (0.5, -1.5), 1e-6
    log_probs = tensor(start).requires_grad_()
    found = losses("gspo", log_probs, tensor([0.5, 0.5, -1.5, -1.5, -1.5]), *lengths, low=0.5, high=0.5)
    analytic = gradient((found * tensor([1 / 2] * 2 + [1 / 3] * 3)).sum(), log_probs)

    def sequence_form(x: list[float]) -> float:
        parts = zip((x[:2], x[2:]), lengths, advantage, strict=True)
        return sum(-a * restatements.geometric_mean_ratio(new, [-1.0] * n) for new, n, a in parts)

    for i in range(5):
        higher, lower = ([v + d * (j == i) for j, v in enumerate(start)] for d in (step, -step))
        assert analytic[i].item() == pytest.approx(
            (sequence_form(higher) - sequence_form(lower)) / (2 * step), rel=1e-6
        )


def test_a_clip_as_wide_as_that_of_tokens_never_binds_for_a_response() -> None:
    """Why gspo's clip is 3e-4: single tokens are 50 % off, their geometric mean is not 0.1 % off."""
    log_probs = tensor([math.log(1.5) - 1, -math.log(1.5) - 1, -0.999, -1.0])
    wide, narrow = (
        LOSSES["gspo"](columns(log_probs=log_probs), responses(4), Clip(low=c, high=c)).clipped.tolist()
        for c in (0.2, 2e-4)
    )
    assert (wide, narrow) == ([0.0] * 4, [1.0] * 4)
    assert LOSSES["ppo"](columns(log_probs=log_probs), responses(4), Clip()).clipped.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_cispo_keeps_the_gradient_of_what_ppo_silences() -> None:
    log_probs = tensor([math.log(3) - 1]).requires_grad_()
    found = {n: gradient(losses(n, log_probs, tensor([1.0]), 1, high=0.28).sum(), log_probs) for n in ("ppo", "cispo")}
    assert found["ppo"].item() == 0.0
    assert found["cispo"].item() == pytest.approx(-1.28)


@pytest.mark.parametrize("dual", [1.4, 3.0, None])
def test_the_dual_clip_is_the_one_that_was_asked_for(dual: float | None) -> None:
    """ROLL has 1.4, verl 3.0, others none: never by default here."""
    assert algorithm().clip.dual is None
    assert losses("ppo", tensor([math.log(8) - 1]), tensor([-2.0]), 1, dual=dual).item() == pytest.approx(
        2 * (dual or 8)
    )


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("far", [-1e30, -500.0, 500.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_that_is_far_off_stays_finite_with_its_gradient(name: str, far: float, advantage: float) -> None:
    log_probs = torch.tensor([-1.0 + far], requires_grad=True)
    tokens = columns(log_probs=log_probs, advantages=torch.tensor([advantage]))
    found = LOSSES[name](tokens._replace(old_log_probs=torch.tensor([-1.0])), responses(1), Clip())
    assert found.loss.isfinite().all()
    assert gradient(found.loss.sum(), log_probs).isfinite().all()


@PROPERTY
@given(value=NUMBERS, old=NUMBERS, target=NUMBERS, clip=st.sampled_from([0.0, 0.2, 0.5]))
def test_the_value_loss_is_the_worse_of_clipped_and_free(value: float, old: float, target: float, clip: float) -> None:
    near = min(max(value, old - clip), old + clip) if clip else value
    found = value_loss(tensor([value]), tensor([old]), tensor([target]), clip).loss.item()
    assert found == pytest.approx(max((value - target) ** 2, (near - target) ** 2) / 2, abs=1e-12)


def test_a_value_beyond_its_clip_is_pulled_back_but_not_pushed_on() -> None:
    """Towards the return and more than 0.5 from the old value: no gradient. Away from it: all of it."""
    values = tensor([1.0, -1.0]).requires_grad_()
    found = value_loss(values, tensor([0.0, 0.0]), tensor([2.0, 2.0]), 0.5)
    assert gradient(found.loss.sum(), values).tolist() == [0.0, -3.0]
    assert found.clipped.tolist() == [1.0, 0.0]
