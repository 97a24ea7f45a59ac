"""Estimators of the divergence, as numbers and as losses, by enumeration; the controller; the penalty in the reward."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithm import KL, AdaptiveKL
from rljob_trainer.algorithm.terms import ESTIMATORS, adapt, k1, k2, k3, token_rewards
from trainer.algorithm.cases import tensor
from trainer.algorithm.strategies import PROPERTY

REFERENCE = tensor([0.3, 0.3, 0.4]).log()
Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def policy() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the log-probabilities 0.7, 0.2, 0.1 of three tokens."""
    logits = tensor([0.7, 0.2, 0.1]).log().requires_grad_()
    return logits, logits.log_softmax(0)


def gradient_of_the_loss(estimator: Estimator) -> torch.Tensor:
    """Expected over tokens that the policy draws, as a training step takes it: nothing flows through the drawing."""
    logits, log_probs = policy()
    (log_probs.detach().exp() * estimator(log_probs, REFERENCE)).sum().backward()
    return logits.grad


def gradient_of_the_divergence(forward: bool) -> torch.Tensor:
    """Of KL(reference || policy), or of KL(policy || reference)."""
    logits, log_probs = policy()
    divergence = REFERENCE.exp() * (REFERENCE - log_probs) if forward else log_probs.exp() * (log_probs - REFERENCE)
    divergence.sum().backward()
    return logits.grad


def test_every_estimator_of_the_spec_is_there() -> None:
    assert set(KL.model_fields["estimator"].annotation.__args__) == set(ESTIMATORS)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_the_estimator_is_unbiased_for_the_divergence(estimator: Estimator) -> None:
    _, log_probs = policy()
    p = log_probs.exp()
    assert (p * estimator(log_probs, REFERENCE)).sum().item() == pytest.approx(
        (p * (log_probs - REFERENCE)).sum().item()
    )


def test_k1_as_a_loss_teaches_nothing() -> None:
    assert gradient_of_the_loss(k1).tolist() == pytest.approx([0.0] * 3, abs=1e-12)


def test_k2_as_a_loss_has_the_gradient_of_the_divergence_from_the_reference() -> None:
    torch.testing.assert_close(gradient_of_the_loss(k2), gradient_of_the_divergence(forward=False))


def test_k3_as_a_loss_has_the_gradient_of_the_other_divergence() -> None:
    torch.testing.assert_close(gradient_of_the_loss(k3), gradient_of_the_divergence(forward=True))


@PROPERTY
@given(st.floats(-50, 0), st.floats(-50, 0))
def test_k3_is_never_negative(log_prob: float, reference: float) -> None:
    assert k3(tensor([log_prob]), tensor([reference])).item() >= 0


def test_k3_neither_overflows_nor_exceeds_its_bound() -> None:
    log_probs = torch.tensor([-1000.0, -1.0], requires_grad=True)
    found = k3(log_probs, torch.tensor([-1.0, -1000.0]))
    found.sum().backward()
    assert found.tolist() == [10.0, 10.0]
    assert log_probs.grad.isfinite().all()


def test_a_token_that_lost_the_reference_does_not_own_the_gradient() -> None:
    """A difference of 15 is exp(15) - 16 = 3.3e6 without a bound: all other tokens of the batch would vanish when the gradient is clipped."""
    log_probs = torch.tensor([-16.0, -2.0], requires_grad=True)
    k3(log_probs, torch.tensor([-1.0, -1.0])).sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([0.0, 1 - math.e])


def test_k3_is_exact_below_its_bound() -> None:
    differences = tensor([-10.9, -1.0, 0.0, 1.0, 2.6])
    assert k3(-differences, torch.zeros_like(differences)).tolist() == pytest.approx(
        [math.exp(d) - d - 1 for d in differences.tolist()]
    )


def test_a_penalty_in_the_reward_is_taken_from_every_token() -> None:
    assert token_rewards("k1", 0.1, tensor([[-1.0, -2.0]]), tensor([[-1.5, -1.0]])).flatten().tolist() == pytest.approx(
        [-0.05, 0.1]
    )


@PROPERTY
@given(kl=st.floats(-1, 10), samples=st.integers(1, 10**6), horizon=st.integers(1, 10**5))
def test_one_step_of_the_controller_changes_the_coefficient_by_at_most_a_fifth(
    kl: float, samples: int, horizon: int
) -> None:
    factor = adapt(1.0, kl, samples, AdaptiveKL(target=0.1, horizon=horizon))
    assert 0.8 - 1e-12 <= factor <= 1.2 + 1e-12
    assert (factor > 1) == (kl > 0.1 and factor != 1)


def test_the_controller_holds_the_target() -> None:
    """A policy that drifts in proportion to 1 / coefficient ends where the divergence is the target."""
    coefficient, adaptive = 1.0, AdaptiveKL(target=0.05, horizon=1000)
    for _ in range(2000):
        coefficient = adapt(coefficient, 0.01 / coefficient, 64, adaptive)
    assert 0.01 / coefficient == pytest.approx(0.05, rel=1e-3)
