import math

import pytest
import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.aggregation import token_mean
from rljob_trainer.algorithm.kl import k3
from rljob_trainer.algorithm.loss.ppo import ppo
from rljob_trainer.algorithm.objective import objective


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # at the start the gradient is the plain policy gradient
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.56, 0.0),  # rewarded and far enough: clipped at 1 + 0.28
        (0.5, 2.0, -1.0, -1.0),  # rewarded and rarer: always pulled back
        (1.5, -2.0, 3.0, 3.0),  # punished and likelier: always pushed down
        (0.5, -2.0, 1.6, 0.0),  # punished and rare enough: clipped at 1 - 0.2
    ],
)
def test_the_surrogate_is_clipped_where_it_would_go_too_far(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    log_ratio = logs(ratio)
    found = ppo(log_ratio, torch.tensor([advantage], dtype=torch.float64), low=0.2, high=0.28)
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)
    assert bool(found.clipped.item()) == (gradient == 0.0)


def test_a_huge_ratio_stays_finite() -> None:
    found = ppo(torch.tensor([1e4]), torch.tensor([-1.0]), 0.2, 0.2)
    assert math.isfinite(found.loss.item())


def test_k3_is_schulmans_estimator() -> None:
    log_probs, reference = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.0, -1.0, -2.5])
    expected = [0.0, math.e - 2, math.exp(-2) + 1]
    assert k3(log_probs, reference).tolist() == pytest.approx(expected, rel=1e-6)


def test_k3_is_unbiased_for_the_divergence() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    assert (p * k3(p.log(), q.log())).sum().item() == pytest.approx((p * (p / q).log()).sum().item())


def test_parts_of_a_mini_batch_add_up_to_its_mean() -> None:
    values, mask = torch.arange(10.0), torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 0, 0, 1])
    whole = token_mean(values, mask, 6)
    assert whole.item() == pytest.approx(values[mask.bool()].mean().item())
    assert (token_mean(values[:3], mask[:3], 6) + token_mean(values[3:], mask[3:], 6)).item() == pytest.approx(
        whole.item()
    )
    assert token_mean(values, torch.zeros(10), 0).item() == 0.0


def test_the_loss_is_the_sum_of_its_weighted_terms() -> None:
    algorithm = AlgorithmSpec.model_validate({"kl": {"coefficient": 0.5}, "entropyCoefficient": 0.1})
    log_probs, old = torch.tensor([-1.0]), torch.tensor([-1.1])
    advantage, entropy, reference = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([-1.5])
    terms = objective(algorithm, log_probs, old, advantage, entropy, reference)
    assert terms.loss.item() == pytest.approx(-math.exp(0.1) - 0.1 * 2.0 + 0.5 * (math.exp(-0.5) + 0.5 - 1), rel=1e-5)
    assert objective(algorithm, log_probs, old, advantage, entropy, None).kl.item() == 0.0
