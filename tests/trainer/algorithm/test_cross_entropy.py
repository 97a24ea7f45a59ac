"""The cross entropy of supervised tasks against numpy in float64."""

import math

import numpy as np
import pytest
import torch

from api.specs import make_spec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective, perplexity
from trainer.algorithm.supervised import Dense, learn

LENGTHS, VOCABULARY = (3, 1, 4), 7
MASK = [0.0, 1, 1, 1, 1, 0, 1, 1]
"""A turn of a user in the third conversation, and a prompt's last token in the first."""


def given() -> tuple[np.ndarray, np.ndarray]:
    """Logits and targets. The second and the last target are the likeliest."""
    random = np.random.default_rng(0)
    logits, targets = random.normal(size=(sum(LENGTHS), VOCABULARY)) * 3, random.integers(0, VOCABULARY, sum(LENGTHS))
    targets[[1, 7]] = logits[[1, 7]].argmax(1)
    targets[[2, 3, 4, 6]] = logits[[2, 3, 4, 6]].argmin(1)
    return logits, targets


def weights(aggregation: str) -> np.ndarray:
    """Of each token: learnt are 2, 1 and 3."""
    return np.array({"tokenMean": [1 / 6] * 8, "sequenceMean": [1 / 6] * 3 + [1 / 3] + [1 / 9] * 4}[aggregation])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("aggregation", ["tokenMean", "sequenceMean"])
def test_loss_and_gradient_are_those_of_the_smoothed_target(aggregation: str, smoothing: float) -> None:
    """The gradient of a cross entropy with target q is p - q."""
    logits, targets = given()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    q = (1 - smoothing) * np.eye(VOCABULARY)[targets] + smoothing / VOCABULARY
    counted = weights(aggregation) * MASK
    expected, slope = -(counted[:, None] * q * np.log(p)).sum(), counted[:, None] * (p - q)

    raw = torch.tensor(logits, requires_grad=True)
    objective = CrossEntropyObjective(
        make_spec(task="sft", sft={"labelSmoothing": smoothing, "aggregation": aggregation}).sft
    )
    mask = {"mask": torch.tensor(MASK, dtype=torch.float64)}
    loss, sums = learn(objective, mask, LENGTHS, Dense(raw, torch.tensor(targets)))
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert raw.grad is not None
    assert np.abs(raw.grad.numpy() - slope).max() < 1e-12
    plain = -np.log(p[np.arange(8), targets])[np.array(MASK) > 0].mean()
    assert objective.metrics(sums) == pytest.approx(
        {"train/perplexity": math.exp(plain), "train/token_accuracy": 2 / 6}, rel=1e-12
    )


def test_a_perplexity_beyond_every_float_is_infinite() -> None:
    assert (perplexity(0.0), perplexity(1e4)) == (1.0, math.inf)
