"""Losses of pairs against the papers' formulas, and their gradients against torch on responses that are not packed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from api.specs import make_spec
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.algorithm.preference import PreferenceObjective, RewardModelObjective, last, require_pairs
from rljob_trainer.wire.batch import Columns
from rljob_trainer.wire.trajectory import Trajectory
from trainer.algorithm.cases import responses
from trainer.algorithm.supervised import Dense, learn

LENGTHS, VOCABULARY = (4, 2, 3, 5), 6
"""Two pairs, each first the chosen response."""
MASK = [0.0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1]
COUNTS = np.array([[3, 2], [2, 4]])
BETA, GAMMA, NOISE = 0.3, 0.4, 0.1
Pairs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From log-probabilities of chosen and rejected responses [k, 2], and the reference's, to losses [k]."""


def leading(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] - x[:, 1]


def sigma(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (-x).exp())


def orpo(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    p = (policy / torch.tensor(COUNTS)).exp()
    odds = p / (1 - p)
    return -p[:, 0].log() - BETA * sigma((odds[:, 0] / odds[:, 1]).log()).log()


COUNTED = torch.tensor(COUNTS)
LOSSES: dict[str, tuple[dict[str, Any], Pairs, float]] = {
    "sigmoid": ({}, lambda p, r: -sigma(BETA * leading(p - r)).log(), BETA),
    "sigmoid, labelSmoothing": (
        {"loss": "sigmoid", "labelSmoothing": NOISE},
        lambda p, r: (
            -(1 - NOISE) * sigma(BETA * leading(p - r)).log() - NOISE * (1 - sigma(BETA * leading(p - r))).log()
        ),
        BETA,
    ),
    "sigmoid, sftCoefficient": (
        {"loss": "sigmoid", "sftCoefficient": 0.5},
        lambda p, r: -sigma(BETA * leading(p - r)).log() - 0.5 * p[:, 0] / COUNTED[:, 0],
        BETA,
    ),
    "ipo": ({}, lambda p, r: (leading((p - r) / COUNTED) - 1 / (2 * BETA)) ** 2, BETA),
    "hinge": ({}, lambda p, r: torch.relu(1 - BETA * leading(p - r)), BETA),
    "simpo": ({"margin": GAMMA}, lambda p, r: -sigma(leading(BETA * p / COUNTED) - GAMMA).log(), BETA),
    "orpo": ({}, orpo, BETA),
}
"""By a name that begins with that of the loss: its options and its formula."""


def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, targets, and the reference's log-probabilities."""
    numbers = torch.Generator().manual_seed(0)
    logits = torch.randn(sum(LENGTHS), VOCABULARY, generator=numbers, dtype=torch.float64) * 2
    targets = torch.randint(0, VOCABULARY, (sum(LENGTHS),), generator=numbers)
    return logits, targets, -2 * torch.rand(sum(LENGTHS), generator=numbers, dtype=torch.float64)


def by_response(log_probs: torch.Tensor) -> torch.Tensor:
    """[t] to [pairs, 2], each response summed on its own."""
    parts = (log_probs * torch.tensor(MASK, dtype=torch.float64)).split(list(LENGTHS))
    return torch.stack([part.sum() for part in parts]).view(2, 2)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradient_and_metrics_are_those_of_the_formula(name: str) -> None:
    options, formula, beta = LOSSES[name]
    logits, targets, reference = tokens()
    dense = logits.clone().requires_grad_()
    log_probs = dense.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    policy, fixed = by_response(log_probs), by_response(reference)
    expected = formula(policy, fixed).mean()
    expected.backward()

    packed = logits.clone().requires_grad_()
    objective = PreferenceObjective(make_spec(task="dpo", dpo={"loss": name.split(",")[0], "beta": beta} | options).dpo)
    columns = {"mask": torch.tensor(MASK, dtype=torch.float64), "reference_log_probs": reference}
    loss, sums = learn(objective, columns, LENGTHS, Dense(packed, targets))
    loss.backward()
    assert loss.item() == pytest.approx(float(expected), abs=1e-12)
    assert dense.grad is not None and packed.grad is not None
    assert float(dense.grad.abs().max()) > 0.01
    assert float((packed.grad - dense.grad).abs().max()) < 1e-12

    policy, measured = policy.detach(), objective.metrics(sums)
    over = {"ipo": (policy - fixed) / COUNTED, "simpo": policy / COUNTED, "orpo": policy / COUNTED}
    rewards = beta * over.get(name, policy - fixed)
    assert measured == pytest.approx(
        {
            "train/margin": float(leading(rewards).mean()),
            "train/accuracy": float((leading(rewards) > 0).double().mean()),
            "train/chosen_reward": float(rewards[:, 0].mean()),
            "train/rejected_reward": float(rewards[:, 1].mean()),
            "train/chosen_log_prob": float(policy[:, 0].mean()),
            "train/rejected_log_prob": float(policy[:, 1].mean()),
        },
        abs=1e-12,
    )


def test_only_losses_with_a_reference_need_it() -> None:
    needs = {
        name: PreferenceObjective(make_spec(task="dpo", dpo={"loss": name}).dpo).needs
        for name in ("ipo", "simpo", "orpo")
    }
    assert needs == {"ipo": {"reference_log_probs"}, "simpo": set(), "orpo": set()}


def test_orpo_is_finite_where_the_policy_is_certain() -> None:
    """Odds of 1 to 0: a probability that float32 rounds to 1."""
    certain = torch.full((2, 4), -100.0)
    certain[:, 0] = 0.0
    certain.requires_grad_()
    objective = PreferenceObjective(make_spec(task="dpo", dpo={"loss": "orpo"}).dpo)
    loss, _ = learn(objective, {"mask": torch.ones(2)}, (1, 1), Dense(certain, torch.tensor([0, 0])))
    loss.backward()
    assert loss.isfinite() and certain.grad is not None and certain.grad.isfinite().all()


def test_the_score_of_the_last_token_is_compared_as_bradley_and_terry_say() -> None:
    values = torch.tensor([5.0, 0.2, -5, 1.2, 0, 0.1, 7, 0.4], dtype=torch.float64, requires_grad=True)
    lengths = (2, 2, 1, 3)
    columns = {"mask": torch.ones(8), "last": torch.cat([last(n) for n in lengths])}
    objective = RewardModelObjective()
    loss, sums = learn(objective, columns, lengths, Dense(values))
    loss.backward()
    margins = np.array([0.2 - 1.2, 0.0 - 0.4])
    assert loss.item() == pytest.approx(np.log1p(np.exp(-margins)).mean(), abs=1e-12)
    slopes = -1 / (1 + np.exp(margins)) / 2
    assert values.grad is not None
    expected = [0, slopes[0], 0, -slopes[0], slopes[1], 0, 0, -slopes[1]]
    assert values.grad.tolist() == pytest.approx(expected, abs=1e-12)
    assert objective.metrics(sums) == pytest.approx(
        {"train/margin": margins.mean(), "train/accuracy": 0, "train/chosen_reward": 0.1, "train/rejected_reward": 0.8}
    )


@pytest.mark.parametrize("objective", [PreferenceObjective(make_spec(task="dpo").dpo), RewardModelObjective()])
def test_a_micro_batch_of_padding_alone_has_no_loss(objective: Objective) -> None:
    """Ranks run as many micro-batches as the one that has most."""
    raw, targets = torch.zeros(3, VOCABULARY, requires_grad=True), torch.zeros(3, dtype=torch.long)
    output = Dense(raw[:, 0], targets) if objective.scores else Dense(raw, targets)
    empty = dict.fromkeys(("mask", "last", "reference_log_probs"), torch.zeros(3))
    found = objective.loss(empty, responses(padding=3), output)
    found.loss.sum().backward()
    assert not found.loss.any() and raw.grad is not None and not raw.grad.any()
    assert not any(column.any() for column in found.token_metrics.values())


def columns(*rows: tuple[int, int, int]) -> Columns:
    """Of trajectories with group, sample and number of response tokens."""
    return Columns.of(
        [
            Trajectory.of_response(
                [1],
                [2] * n,
                [0.0] * n,
                0,
                prompt_index=0,
                group=group,
                sample=sample,
                finish_reason="stop",
                reward=0.0,
                data_source="",
            )
            for group, sample, n in rows
        ]
    )


def test_a_group_that_is_no_pair_is_refused() -> None:
    require_pairs(columns((0, 0, 1), (0, 1, 2), (4, 0, 1), (4, 1, 1)))
    for wrong in (
        ((0, 0, 1), (1, 0, 1)),
        ((0, 0, 1), (0, 1, 1), (1, 0, 1)),
        ((0, 0, 1), (1, 1, 1)),
        ((0, 0, 1), (0, 1, 0)),
    ):
        with pytest.raises(ValueError, match="not a chosen and a rejected response"):
            require_pairs(columns(*wrong))
