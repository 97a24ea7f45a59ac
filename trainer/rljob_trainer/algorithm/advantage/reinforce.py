"""REINFORCE++: returns without a critic, whitened over the step."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes, by_group
from rljob_trainer.algorithm.advantage.gae import accumulate
from rljob_trainer.algorithm.advantage.whitening import whiten


def reinforce(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = whitened G_t, G_t = r_t + gamma G_t+1 (REINFORCE++, arXiv 2501.03262, section 3).

    Returns are the advantages of a value function that is 0. Whitening takes the step's mean for the baseline.
    """
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, algorithm.gamma, algorithm.gamma)
    return Advantages(whiten(returns, episodes.mask))


def reinforce_with_baseline(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = whitened (R_i - mean_g), for every token (arXiv 2501.03262, the REINFORCE++-baseline variant).

    A group of one is its own mean: 0 before whitening.
    """
    centred = by_group(episodes.outcomes, episodes.groups, lambda r: r - r.mean())
    return Advantages(whiten(episodes.spread(centred), episodes.mask))
