"""Estimators that compare the responses to one prompt."""

import math

import pytest

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage import ADVANTAGES
from trainer.algorithm.cases import episodes, of_responses

ONE_IN_EIGHT = [1.0, 0, 0, 0, 0, 0, 0, 0]
GROUPED = ("grpo", "rloo", "reinforce++-baseline", "opo")


def test_every_estimator_of_the_spec_is_there() -> None:
    assert set(AlgorithmSpec.model_fields["advantage"].annotation.__args__) == set(ADVANTAGES)


def test_one_right_answer_in_eight_has_the_advantage_that_other_systems_give_it() -> None:
    """2.47 in verl, slime, ROLL, RLinf and SkyRL: (1 - 1/8) / sqrt(1/8) with ddof 1. Megatron-RL's population deviation would give 2.645."""
    advantages = of_responses(episodes(ONE_IN_EIGHT))
    assert advantages[0] == pytest.approx(2.4748737 / (1 + 1e-6 * math.sqrt(8)), rel=1e-7)
    assert advantages[1] == pytest.approx(-0.3535534, rel=1e-5)
