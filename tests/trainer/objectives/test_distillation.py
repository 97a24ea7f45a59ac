"""What a teacher teaches: by enumeration of what a policy may sample, the gradient of KL(policy || teacher)."""

import pytest
import torch

from api.specs import make_spec
from rljob_trainer.objectives.advantages import Episodes
from rljob_trainer.objectives.kl import token_rewards
from rljob_trainer.objectives.losses import LOSSES
from rljob_trainer.objectives.policy import PolicyObjective
from rljob_trainer.objectives.terms import policy_terms
from trainer.objectives.cases import algorithm, columns, estimate, responses, tensor

TEACHER = tensor([0.2, 0.5, 0.3]).log()
COEFFICIENT = 0.6


def logits() -> torch.Tensor:
    return tensor([0.7, 0.2, 0.1]).log().requires_grad_()


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


def test_the_divergence_is_measured_whatever_is_learnt_from_it() -> None:
    tokens = columns(log_probs=[-1.0, -2.0], teacher_log_probs=[-1.5, -0.5], mask=[1.0, 0.0])
    spec = algorithm(distillation={"pool": "t", "where": "reward"})
    assert policy_terms(spec, LOSSES[spec.loss], 0.0, tokens, responses(2)).teacher_kl.tolist() == [0.5, 0.0]


def test_the_teachers_word_counts_for_its_token_alone() -> None:
    """Two responses of one prompt: their advantages are compared, the teacher's words are not. The bound holds for the sum."""
    given = Episodes(
        rewards=tensor([1.0, 0.0]),
        groups=torch.tensor([0, 0]),
        mask=tensor([[1.0, 1.0], [1.0, 0.0]]),
        token_rewards=tensor([[0.0, 0.0], [0.0, 0.0]]),
        own_rewards=tensor([[-0.25, 2.0], [0.5, 9.0]]),
    )
    fields = {"advantage": "grpo", "group": {"divideByStd": False}}
    assert estimate(given, **fields).advantages.tolist() == [[0.25, 2.5], [0.0, 0.0]]
    assert estimate(given, **fields, advantageClip=1.0).advantages.tolist() == [[0.25, 1.0], [0.0, 0.0]]


def test_old_log_probabilities_are_measured_only_where_tokens_are_rewarded() -> None:
    def needs(where: str) -> frozenset[str]:
        pools = [{"name": "teacher", "model": "/teacher"}]
        distillation = {"pool": "teacher", "where": where}
        return PolicyObjective(make_spec(pools=pools, algorithm={"distillation": distillation})).needs

    assert needs("reward") == {"old_log_probs"} and needs("loss") == set()
