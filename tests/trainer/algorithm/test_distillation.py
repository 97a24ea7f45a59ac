"""What a teacher teaches: by enumeration of what a policy may sample, the gradient of KL(policy || teacher)."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.losses import LOSSES
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.algorithm.terms import policy_terms, token_rewards
from rljob_trainer.wire.batch import candidates
from trainer.algorithm.cases import algorithm, columns, episodes, estimate, responses, tensor
from trainer.algorithm.supervised import Dense

TEACHER = tensor([0.2, 0.5, 0.3]).log()
COEFFICIENT = 0.6


def logits() -> torch.Tensor:
    return tensor([0.7, 0.2, 0.1]).log().requires_grad_()


def distilling(fields: dict[str, Any]) -> RLJobSpec:
    """From a teacher in a pool."""
    pools = [{"name": "teacher", "model": "/teacher"}]
    return make_spec(pools=pools, algorithm={"distillation": {"pool": "teacher"} | fields})


def exact() -> torch.Tensor:
    """Of coefficient x KL(policy || teacher), with respect to the logits."""
    of = logits()
    log_probs = of.log_softmax(0)
    (COEFFICIENT * (log_probs.exp() * (log_probs - TEACHER)).sum()).backward()
    return of.grad


def sampled_loss(where: str) -> torch.Tensor:
    """Likewise of the expected loss: each token as often as the policy samples it."""
    of, spec = logits(), algorithm(distillation={"pool": "t", "coefficient": COEFFICIENT, "where": where})
    log_probs = of.log_softmax(0)
    old = log_probs.detach()
    advantages = token_rewards("k1", COEFFICIENT, old, TEACHER) if where == "reward" else torch.zeros(3).double()
    tokens = columns(
        log_probs=log_probs,
        old_log_probs=old,
        rollout_log_probs=old,
        teacher_log_probs=TEACHER,
        advantages=advantages,
    )
    (policy_terms(spec, LOSSES[spec.loss], 0.0, tokens, responses(1, 1, 1)).loss * old.exp()).sum().backward()
    return of.grad


@pytest.mark.parametrize("where", ["reward", "loss"])
def test_the_expected_gradient_is_that_of_the_divergence_from_the_teacher(where: str) -> None:
    torch.testing.assert_close(sampled_loss(where), exact())


def test_over_the_whole_vocabulary_the_gradient_is_that_of_the_divergence_without_sampling() -> None:
    found, expected = logits(), exact()
    top_k_loss(found, 3).backward()
    torch.testing.assert_close(found.grad, expected, atol=1e-5, rtol=0)


def test_over_the_likeliest_tokens_the_divergence_is_a_lower_bound_that_still_moves_every_token() -> None:
    """Whatever the teacher's order: token 1 is its likeliest, and the others are one event."""
    found = logits()
    loss = top_k_loss(found, 1)
    loss.backward()
    assert loss.item() / COEFFICIENT == pytest.approx(0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5), abs=1e-6)
    assert 0 < loss.item() < COEFFICIENT * whole_divergence() and bool((found.grad != 0).all())


def whole_divergence() -> float:
    log_probs = logits().log_softmax(0)
    return (log_probs.exp() * (log_probs - TEACHER)).sum().item()


def top_k_loss(of: torch.Tensor, count: int) -> torch.Tensor:
    """Of one token, through the objective: what a teacher says travels as columns, by the names of batch.candidates."""
    spec = distilling({"where": "loss", "topK": count, "coefficient": COEFFICIENT})
    best = TEACHER.topk(count)
    given = {n: best.indices[i : i + 1].float() for i, n in enumerate(candidates(count)[0])}
    given |= {n: best.values[i : i + 1] for i, n in enumerate(candidates(count)[1])}
    return objective_loss(spec, of, given | {"teacher_log_probs": TEACHER[:1]})


def objective_loss(spec: RLJobSpec, of: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of one sampled token, the first, without advantage."""
    nothing, sampled = torch.zeros(1).double(), of.detach().log_softmax(0)[:1]
    fixed = {"mask": nothing + 1, "age": nothing, "advantages": nothing, "rollout_log_probs": sampled}
    output = Dense(of[None], torch.tensor([0]))
    return PolicyObjective(spec).loss(fixed | given, responses(1), output).loss.sum()


def test_the_reference_teaches_as_a_pool_does() -> None:
    by_pool, by_reference = logits(), logits()
    spec = distilling({"where": "loss"})
    objective_loss(spec, by_pool, {"teacher_log_probs": TEACHER[:1]}).backward()
    spec = make_spec(algorithm={"distillation": {"reference": True, "where": "loss"}}, reference={"path": "/teacher"})
    objective_loss(spec, by_reference, {"reference_log_probs": TEACHER[:1]}).backward()
    assert bool(by_pool.grad.any()) and torch.equal(by_pool.grad, by_reference.grad)
    assert PolicyObjective(spec).needs == {"reference_log_probs"} and list(spec.models) == ["reference"]


def test_the_divergence_is_measured_whatever_is_learnt_from_it() -> None:
    tokens = columns(log_probs=[-1.0, -2.0], teacher_log_probs=[-1.5, -0.5], mask=[1.0, 0.0])
    spec = algorithm(distillation={"pool": "t", "where": "reward"})
    assert policy_terms(spec, LOSSES[spec.loss], 0.0, tokens, responses(2)).teacher_kl.tolist() == [0.5, 0.0]


def test_the_teachers_word_counts_for_its_token_alone() -> None:
    """Two responses of one prompt: their advantages are compared, the teacher's words are not. The bound holds for the sum."""
    given = episodes([1.0, 0.0], mask=[[1.0, 1.0], [1.0, 0.0]])
    given = replace(given, own_rewards=tensor([-0.25, 2.0, 0.5, 9.0]))
    fields = {"advantage": "grpo", "group": {"divideByStd": False}}
    assert estimate(given, **fields).advantages.tolist() == [[0.25, 2.5], [0.0, 0.0]]
    assert estimate(given, **fields, advantageClip=1.0).advantages.tolist() == [[0.25, 1.0], [0.0, 0.0]]


def test_old_log_probabilities_are_measured_only_where_tokens_are_rewarded() -> None:
    def needs(where: str) -> frozenset[str]:
        return PolicyObjective(distilling({"where": where})).needs

    assert needs("reward") == {"old_log_probs"} and needs("loss") == set()
