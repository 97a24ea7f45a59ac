"""Hand-computed losses of supervised tasks."""

from collections.abc import Callable
from typing import Any

import torch

from rljob_api.spec.algorithm import DpoSpec
from rljob_trainer.algorithm.cross_entropy import smoothed
from rljob_trainer.algorithm.preference import Responses, bradley_terry, preference_terms
from rljob_trainer.algorithm.tokens import Predictions
from trainer.algorithm.cases import tensor
from trainer.algorithm.oracles import Numbers, Oracle

PAIR = "log p -4 of 4 tokens and -6 of 2, reference -5 and -5"


def preference(**options: Any) -> Callable[[], Numbers]:
    """The loss of PAIR, then its gradients with respect to the log-probabilities of both responses."""

    def compute() -> Numbers:
        log_probs = tensor([[-4.0, -6.0]]).requires_grad_()
        pair = Responses(log_probs, tensor([[-5.0, -5.0]]), tensor([[4.0, 2.0]]))
        found = preference_terms(pair, DpoSpec.model_validate(options))
        (gradient,) = torch.autograd.grad(found.loss.sum(), log_probs)
        return [found.loss.item(), *gradient[0].tolist()]

    return compute


def cross_entropy(smoothing: float) -> Callable[[], Numbers]:
    """Of a token with probability 1/2, where those of the vocabulary are 1/2, 1/4, 1/8, 1/8."""
    p = tensor([0.5, 0.25, 0.125, 0.125]).log()
    predicted = Predictions(p[:1], p[:1], p.mean()[None], p[:1], p[None, :0])
    return lambda: smoothed(predicted, smoothing).tolist()


SUPERVISED_ORACLES = (
    Oracle("cross entropy", "p 1/2: log 2", [0.69314718056], cross_entropy(0.0)),
    Oracle(
        "cross entropy, labelSmoothing 0.2",
        "p 1/2, 1/4, 1/8, 1/8: 0.8 log 2 + 0.2 x (1 + 2 + 3 + 3) / 4 x log 2",
        [0.86643397570],
        cross_entropy(0.2),
    ),
    Oracle(
        "dpo",
        f"{PAIR}; beta 0.5: d = 0.5 x (1 + 1), log(1 + exp(-1)); gradients -+0.5 / (1 + e)",
        [0.31326168752, -0.13447071068, 0.13447071068],
        preference(beta=0.5),
    ),
    Oracle(
        "dpo, labelSmoothing 0.1",
        "0.9 x log(1 + exp(-1)) + 0.1 x log(1 + e); gradients -+0.5 x (0.9 / (1 + e) - 0.1 e / (1 + e))",
        [0.41326168752, -0.08447071068, 0.08447071068],
        preference(beta=0.5, labelSmoothing=0.1),
    ),
    Oracle(
        "dpo, sftCoefficient 2",
        "log(1 + exp(-1)) + 2 x 4 / 4; gradients -0.5 / (1 + e) - 2 / 4, 0.5 / (1 + e)",
        [2.31326168752, -0.63447071068, 0.13447071068],
        preference(beta=0.5, sftCoefficient=2),
    ),
    Oracle(
        "ipo",
        "beta 0.5: h = 1/4 + 1/2, (h - 1)^2; gradients 2 x (h - 1) / 4, -2 x (h - 1) / 2",
        [0.0625, -0.125, 0.25],
        preference(loss="ipo", beta=0.5),
    ),
    Oracle("hinge", "beta 0.25: 1 - 0.5; gradients -+beta", [0.5, -0.25, 0.25], preference(loss="hinge", beta=0.25)),
    Oracle("hinge, far enough", "beta 1: 1 - 2 < 0", [0.0, 0.0, 0.0], preference(loss="hinge", beta=1)),
    Oracle(
        "simpo",
        "beta 2, margin 0.5: d = 2 x (-1 + 3), log(1 + exp(-3.5)); gradients -2 / 4 and 2 / 2 x 1 / (1 + exp(3.5))",
        [0.02975041827, -0.01465611539, 0.02931223075],
        preference(loss="simpo", beta=2, margin=0.5),
    ),
    Oracle(
        "orpo",
        "beta 0.5: p exp(-1), exp(-3), ratio of odds R = (e^3 - 1) / (e - 1): 1 + 0.5 log(1 + 1 / R); gradients "
        "-(1 + 0.5 / (1 + R) / (1 - 1 / e)) / 4, 0.5 / (1 + R) / (1 - exp(-3)) / 2",
        [1.04310287231, -0.26633282969, 0.02173053447],
        preference(loss="orpo", beta=0.5),
    ),
    Oracle(
        "reward model",
        "scores 2 and 1: log(1 + exp(-1))",
        [0.31326168752],
        lambda: bradley_terry(tensor([[2.0, 1.0]]), tensor([[1.0, 1.0]])).loss.tolist(),
    ),
)
