"""The rollouts' probabilities against the trainer's: measured, weighed, rejected."""

import math
import random
from typing import Any

import pytest
import torch

from rljob_trainer.algorithm.losses import LOSSES
from rljob_trainer.algorithm.terms import Terms, correct, mismatch, policy_terms
from trainer.algorithm.cases import algorithm, columns, responses, tensor

OFF = [math.log(1.5), math.log(0.8), math.log(4), math.log(0.2)]
"""log old - log rollout of four tokens."""


def terms(log_probs: torch.Tensor | None = None, off: list[float] = OFF, **fields: Any) -> Terms:
    spec = algorithm(**fields)
    given = {} if log_probs is None else {"log_probs": log_probs}
    tokens = columns(
        rollout_log_probs=-1 - tensor(off),
        entropy=torch.ones(len(off), dtype=torch.float64),
        reference_log_probs=torch.full((len(off),), -2.0, dtype=torch.float64),
        **given,
    )
    return policy_terms(spec, LOSSES[spec.loss], 0.1, tokens, responses(2, 2))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_agreement_weighs_one_and_rejects_nothing(level: str) -> None:
    found = terms(off=[0.0] * 4, rolloutCorrection={"importanceSampling": level, "reject": {"level": level}})
    assert found.weight.tolist() == [1.0] * 4
    assert found.rejected.tolist() == [0.0] * 4
    assert found.mismatch_ratio.tolist() == [1.0] * 4
    assert found.difference.tolist() == [0.0] * 4


def test_the_weight_is_of_old_against_rollout_and_the_clipped_ratio_of_new_against_old() -> None:
    found = terms(tensor([math.log(1.1) - 1] * 4), rolloutCorrection={"importanceSampling": "token"})
    assert found.weight.tolist() == pytest.approx([1.5, 0.8, 2.0, 0.2])
    assert found.ratio.tolist() == pytest.approx([1.1] * 4)
    assert found.policy.tolist() == pytest.approx([-1.65, -0.88, -2.2, -0.22])


def test_with_token_weights_ppo_is_the_decoupled_objective() -> None:
    """-min(pi_prox / mu, cap) x min(u A, clip(u) A), u = pi / pi_prox (arXiv 2110.00641, 2505.24298), and its gradient, in plain Python."""
    chance = random.Random(0)
    new, old, rollout = ([chance.uniform(-3, -0.1) for _ in range(200)] for _ in range(3))
    advantages = [chance.gauss(0, 1) for _ in range(200)]
    log_probs = tensor(new).requires_grad_()
    tokens = columns(log_probs=log_probs, old_log_probs=old, rollout_log_probs=rollout, advantages=advantages)
    spec = algorithm(rolloutCorrection={"importanceSampling": "token", "cap": 5}, clip={"low": 0.2, "high": 0.3})
    found = policy_terms(spec, LOSSES[spec.loss], 0.0, tokens, responses(120, 80)).loss
    found.sum().backward()
    for i in range(200):
        u, weight, a = math.exp(new[i] - old[i]), min(math.exp(old[i] - rollout[i]), 5), advantages[i]
        clipped = min(max(u, 0.8), 1.3)
        assert found[i].item() == pytest.approx(-weight * min(u * a, clipped * a))
        assert log_probs.grad[i].item() == pytest.approx(-weight * u * a if u * a <= clipped * a else 0.0)


def test_the_weight_is_a_constant() -> None:
    log_probs = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    tokens = columns(log_probs=log_probs, old_log_probs=log_probs, rollout_log_probs=-1 - tensor(OFF))
    spec = algorithm(rolloutCorrection={"importanceSampling": "sequence", "reject": {}}).rollout_correction
    assert not any(x.requires_grad for x in (*correct(spec, tokens, responses(2, 2)), *mismatch(tokens)))


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo"])
def test_bypass_corrects_by_the_ratio_alone(loss: str) -> None:
    """The ratio is of new against rollout; multiplying with old against rollout as well would count the mismatch twice."""
    wide = {"loss": loss, "clip": {"low": 0.9, "high": 9}}
    once = terms(rolloutCorrection={"bypass": True}, **wide)
    twice = terms(rolloutCorrection={"bypass": True, "importanceSampling": "token"}, **wide)
    expected = [1.5, 0.8, 4.0, 0.2] if loss != "gspo" else [math.sqrt(1.2)] * 2 + [math.sqrt(0.8)] * 2
    assert once.ratio.tolist() == pytest.approx(expected)
    assert twice.weight.tolist() == [1.0] * 4
    assert twice.loss.tolist() == once.loss.tolist()


def test_with_bypass_the_mismatch_is_still_measured() -> None:
    assert terms(rolloutCorrection={"bypass": True}).mismatch_ratio.tolist() == pytest.approx([1.5, 0.8, 4.0, 0.2])


@pytest.mark.parametrize(("level", "rejected"), [("token", [0.0, 0.0, 1.0, 1.0]), ("sequence", [0.0, 0.0, 0.0, 0.0])])
def test_what_is_rejected_gives_no_loss_of_any_kind(level: str, rejected: list[float]) -> None:
    """Policy, entropy and KL. The second response has ratios 4 and 0.2, but its geometric mean is 0.89."""
    fields = {"entropyCoefficient": 0.3, "kl": {"coefficient": 0.1}}
    log_probs = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    found = terms(log_probs, rolloutCorrection={"reject": {"level": level}}, **fields)
    kept = terms(**fields)
    found.loss.sum().backward()
    assert found.rejected.tolist() == rejected
    assert found.loss.tolist() == pytest.approx(
        [(1 - r) * x for r, x in zip(rejected, kept.loss.tolist(), strict=True)]
    )
    assert [float(g == 0) for g in log_probs.grad] == rejected


def test_a_response_is_judged_by_its_own_tokens_alone() -> None:
    """Prompt tokens and padding between responses have any log-probabilities."""
    tokens = columns(
        old_log_probs=tensor([9.0, math.log(1.5), math.log(1.2), 7.0, math.log(0.5), -8.0]),
        rollout_log_probs=[0.0] * 6,
        mask=[0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
    )
    spec = algorithm(rolloutCorrection={"importanceSampling": "sequence"}).rollout_correction
    weight = correct(spec, tokens, responses(3, 2, padding=1)).weight
    assert weight[tokens.mask > 0].tolist() == pytest.approx([1.8, 1.8, 0.5])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_absurd_differences_stay_finite(level: str) -> None:
    found = terms(off=[1e30, 0.0, -1e30, 500.0], rolloutCorrection={"importanceSampling": level, "reject": {}})
    assert all(column.isfinite().all() for column in found)
    assert found.weight.max().item() == 2.0


def test_the_mismatch_is_measured_without_any_correction() -> None:
    found = terms()
    assert found.difference.tolist() == pytest.approx([abs(x) for x in OFF])
    assert found.mismatch_kl.tolist() == pytest.approx([math.exp(x) - x - 1 for x in OFF])
    assert found.mismatch_square.tolist() == pytest.approx([2.25, 0.64, 16.0, 0.04])
    assert found.weight.tolist() == [1.0] * 4
