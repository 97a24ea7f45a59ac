import math

import pytest
import torch

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.aggregation import token_mean
from rljob_trainer.algorithm.kl import k3
from rljob_trainer.algorithm.loss.surrogate import surrogate


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
    found = surrogate(log_ratio, torch.tensor([advantage], dtype=torch.float64), Clip(high=0.28))
    found.loss.sum().backward()
    assert found.loss.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)
    assert bool(found.clipped.item()) == (gradient == 0.0)


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
