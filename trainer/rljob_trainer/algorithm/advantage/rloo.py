"""REINFORCE leave-one-out."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes, by_group


def rloo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - mean of the others' = k / (k - 1) (R_i - mean_g), for every token (arXiv 2402.14740).

    A group of one has no others: 0.
    """
    return Advantages(episodes.spread(by_group(episodes.outcomes, episodes.groups, _against_others)))


def _against_others(rewards: torch.Tensor) -> torch.Tensor:
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / max(1, count - 1))
