import math

import pytest
import torch

from rljob_trainer.algorithm.advantage import ADVANTAGES
from rljob_trainer.algorithm.advantage.grpo import grpo


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_one_right_answer_in_eight_has_the_advantage_that_other_systems_give_it() -> None:
    """2.47 in verl, slime, ROLL, RLinf and SkyRL: (1 - 1/8) / sqrt(1/8) with ddof 1."""
    advantages = grpo(tensor(1, 0, 0, 0, 0, 0, 0, 0), torch.zeros(8, dtype=torch.long))
    assert advantages[0].item() == pytest.approx(2.4748737, rel=1e-5)
    assert advantages[1].item() == pytest.approx(-0.3535534, rel=1e-5)


def test_groups_of_any_size_in_any_order_are_standardised_alone() -> None:
    rewards, groups = tensor(3, 10, 1, 20, 2), torch.tensor([7, -1, 7, -1, 7])
    assert grpo(rewards, groups).tolist() == pytest.approx(
        [1.0, -1 / math.sqrt(2), -1.0, 1 / math.sqrt(2), 0.0], rel=1e-5
    )


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    assert grpo(tensor(1, 1, 1), torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0, 0.0]


def test_a_group_of_one_keeps_its_reward() -> None:
    assert grpo(tensor(0.5, 0, 2), torch.tensor([4, 5, 5]))[0].item() == pytest.approx(0.5, rel=1e-5)


def test_every_estimator_of_the_spec_is_there() -> None:
    from rljob_api.spec.algorithm import AlgorithmSpec

    assert set(AlgorithmSpec.model_fields["advantage"].annotation.__args__) == set(ADVANTAGES)
