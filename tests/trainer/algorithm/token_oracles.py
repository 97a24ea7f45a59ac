"""Hand-computed losses, divergences, weights and corrections of tokens."""

import math
from collections.abc import Callable
from typing import Any

import torch

from rljob_api.spec.algorithm import AdaptiveKL, Overlong
from rljob_trainer.algorithm.losses import LOSSES, token_weights, value_loss
from rljob_trainer.algorithm.shaping import overlong_penalty
from rljob_trainer.algorithm.terms import ESTIMATORS, adapt, correct, top_k_kl
from trainer.algorithm.cases import algorithm, columns, responses, tensor
from trainer.algorithm.oracles import Numbers, Oracle


def policy(log_ratios: Numbers, advantages: Numbers, lengths: Numbers = (), **fields: Any) -> Callable[[], Numbers]:
    """The losses, then their gradients with respect to the log-probabilities. The old ones are -1."""

    def compute() -> Numbers:
        log_probs = (tensor(log_ratios) - 1).requires_grad_()
        spec = algorithm(**fields)
        tokens = columns(log_probs=log_probs, advantages=advantages)
        found = LOSSES[spec.loss](tokens, responses(*(int(n) for n in lengths or [len(log_ratios)])), spec.clip)
        (gradient,) = torch.autograd.grad(found.loss.sum(), log_probs)
        return [*found.loss.tolist(), *gradient.tolist()]

    return compute


def correction(log_ratios: Numbers, lengths: Numbers, column: str, **fields: Any) -> Callable[[], Numbers]:
    def compute() -> Numbers:
        tokens = columns(old_log_probs=tensor(log_ratios) - 1)
        spec = algorithm(rolloutCorrection=fields).rollout_correction
        return getattr(correct(spec, tokens, responses(*(int(n) for n in lengths))), column).tolist()

    return compute


def estimator(name: str) -> Callable[[], Numbers]:
    return lambda: ESTIMATORS[name](tensor([-1.0, -2.0, -0.5]), tensor([-1.0, -1.0, -2.5])).tolist()


def coarse(policy: Numbers, teacher: Numbers) -> Callable[[], Numbers]:
    """Of the probabilities of the same tokens."""
    return lambda: [top_k_kl(tensor([policy]).log(), tensor([teacher]).log()).item()]


def critic(clip: float) -> Callable[[], Numbers]:
    return lambda: value_loss(tensor([1.0, 0.2]), tensor([0.0, 0.0]), tensor([2.0, 2.0]), clip).loss.tolist()


LOG = math.log
DUAL = {"clip": {"dual": 3}}
WIDE = {"loss": "gspo", "clip": {"low": 0.5, "high": 0.5}}

LOSS_ORACLES = (
    Oracle("ppo, inside", "r 1.1, A 2: -2.2; gradient -A r", [-2.2, -2.2], policy([LOG(1.1)], [2])),
    Oracle("ppo, rewarded enough", "r 1.5, A 2, high 0.2: -2 x 1.2; gradient 0", [-2.4, 0.0], policy([LOG(1.5)], [2])),
    Oracle("ppo, rewarded yet rarer", "r 0.5, A 2: -1; gradient -1", [-1.0, -1.0], policy([LOG(0.5)], [2])),
    Oracle("ppo, punished yet likelier", "r 1.5, A -2: 3; gradient 3", [3.0, 3.0], policy([LOG(1.5)], [-2])),
    Oracle("ppo, punished enough", "r 0.5, A -2, low 0.2: 2 x 0.8; gradient 0", [1.6, 0.0], policy([LOG(0.5)], [-2])),
    Oracle(
        "ppo, clip-higher (DAPO)",
        "r 1.25, 1.5, A 1, high 0.28: -1.25, -1.28; gradients -1.25, 0",
        [-1.25, -1.28, -1.25, 0.0],
        policy([LOG(1.25), LOG(1.5)], [1, 1], clip={"high": 0.28}),
    ),
    Oracle(
        "ppo, dual 3",
        "r 5, A -1: min(5, 3), gradient 0; r 2, A -1: 2; r 5, A 1: -1.2",
        [3.0, 2.0, -1.2, 0.0, 2.0, 0.0],
        policy([LOG(5), LOG(2), LOG(5)], [-1, -1, 1], **DUAL),
    ),
    Oracle("ppo, no dual", "r 5, A -1: 5; gradient 5", [5.0, 5.0], policy([LOG(5)], [-1])),
    Oracle(
        "gspo",
        "log-ratios 0.1, 0.3 and 0; A 1 and -1: s = exp(0.2), 1; every gradient -A s",
        [-1.22140275816, -1.22140275816, 1.0, -1.22140275816, -1.22140275816, 1.0],
        policy([0.1, 0.3, 0.0], [1, 1, -1], [2, 1], **WIDE),
    ),
    Oracle(
        "gspo, clipped at 4e-4",
        "log-ratios 0.1, 0.3, A 1: -1.0004 for both; gradients 0",
        [-1.0004, -1.0004, 0.0, 0.0],
        policy([0.1, 0.3], [1, 1], loss="gspo", clip={"low": 3e-4, "high": 4e-4}),
    ),
    Oracle(
        "cispo",
        "r 1.5, A 2, log policy log(1.5) - 1: -1.2 x 2 x (0.40546511 - 1); gradient -1.2 x 2",
        [1.42688374055, -2.4],
        policy([LOG(1.5)], [2], loss="cispo"),
    ),
    Oracle("value loss", "V 1, 0.2, R 2: (1 - 2)^2 / 2, (0.2 - 2)^2 / 2", [0.5, 1.62], critic(0)),
    Oracle("value loss, clip 0.5", "V_old 0: max(0.5, (0.5 - 2)^2 / 2), 1.62", [1.125, 1.62], critic(0.5)),
)

KL_ORACLES = (
    Oracle("kl k1", "log policy - log reference: 0, -1, 2", [0.0, -1.0, 2.0], estimator("k1")),
    Oracle("kl k2", "squares / 2", [0.0, 0.5, 2.0], estimator("k2")),
    Oracle(
        "kl of two tokens and the rest",
        "p 0.5, 0.2, 0.3; q 0.25, 0.6, 0.15: 0.5 ln 2 + 0.2 ln(1/3) + 0.3 ln 2",
        [0.33479528672],
        coarse([0.5, 0.2], [0.25, 0.6]),
    ),
    Oracle("kl of one token and the rest", "0.7 ln 3.5 + 0.3 ln 0.375", [0.58268530217], coarse([0.7], [0.2])),
    Oracle("kl k3", "0, e - 2, exp(-2) + 2 - 1", [0.0, 0.71828182846, 1.13533528324], estimator("k3")),
    Oracle(
        "adaptive kl",
        "target 0.01, horizon 10000, 500 samples: KL 0.02: x (1 + 0.2 / 20); KL 0.009: x (1 - 0.1 / 20)",
        [0.00101, 0.000995],
        lambda: [adapt(1e-3, kl, 500, AdaptiveKL(target=0.01)) for kl in (0.02, 0.009)],
    ),
)

CORRECTION_ORACLES = (
    Oracle(
        "importance sampling, token",
        "d = log 1.5, log 4 and log 0.5, cap 2: 1.5, 2, 0.5",
        [1.5, 2.0, 0.5],
        correction([LOG(1.5), LOG(4), LOG(0.5)], [2, 1], "weight", importanceSampling="token"),
    ),
    Oracle(
        "importance sampling, sequence",
        "d = log 1.5, log 1.2 and log 4, cap 2: 1.8, 1.8, 2",
        [1.8, 1.8, 2.0],
        correction([LOG(1.5), LOG(1.2), LOG(4)], [2, 1], "weight", importanceSampling="sequence"),
    ),
    Oracle(
        "rejection, token",
        "ratios 1.5, 2.1 and 0.4, bounds 0.5, 2",
        [0.0, 1.0, 1.0],
        correction([LOG(1.5), LOG(2.1), LOG(0.4)], [2, 1], "rejected", reject={}),
    ),
    Oracle(
        "rejection, sequence",
        "ratios 3, 0.5 and 2.1: geometric means sqrt(1.5), 2.1; bounds 0.5, 2",
        [0.0, 0.0, 1.0],
        correction([LOG(3), LOG(0.5), LOG(2.1)], [2, 1], "rejected", reject={"level": "sequence"}),
    ),
)

AMOUNT_ORACLES = (
    Oracle("tokenMean", "lengths 1, 3: 1 / 4", [0.25, 0.25], lambda: token_weights([1, 3], "tokenMean", 8)),
    Oracle(
        "sequenceMeanTokenMean",
        "lengths 1, 3: 1 / (2 x 1), 1 / (2 x 3)",
        [0.5, 1 / 6],
        lambda: token_weights([1, 3], "sequenceMeanTokenMean", 8),
    ),
    Oracle(
        "sequenceMeanTokenSum",
        "lengths 1, 3: 1 / 2",
        [0.5, 0.5],
        lambda: token_weights([1, 3], "sequenceMeanTokenSum", 8),
    ),
    Oracle(
        "sequenceMeanTokenSumNorm",
        "lengths 1, 3, maxTokens 8: 1 / (2 x 8)",
        [0.0625, 0.0625],
        lambda: token_weights([1, 3], "sequenceMeanTokenSumNorm", 8),
    ),
    Oracle(
        "overlong penalty (DAPO's numbers)",
        "maxTokens 20480, buffer 4096, penalty 1: lengths 16384, 18432, 20480",
        [0.0, 0.5, 1.0],
        lambda: [overlong_penalty(n, 20480, Overlong(buffer_tokens=4096)) for n in (16384, 18432, 20480)],
    ),
)
