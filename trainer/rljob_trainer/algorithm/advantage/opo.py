"""On-policy RL with the optimal reward baseline."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes, by_group


def opo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - sum_j(l_j R_j) / sum_j(l_j) over the group, l the lengths, for every token (arXiv 2505.23585).

    The baseline of least variance when the squared norm of a response's score grows with its length. A group of one is its own baseline: 0.
    """
    pairs = torch.stack((episodes.outcomes, episodes.lengths), dim=1)
    return Advantages(episodes.spread(by_group(pairs, episodes.groups, _against_weighted_mean)))


def _against_weighted_mean(pairs: torch.Tensor) -> torch.Tensor:
    rewards, lengths = pairs.unbind(1)
    return rewards - (rewards * lengths).sum() / lengths.sum().clamp(min=1)
