"""ReMax: the reward of the greedy response is the baseline."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes
from rljob_trainer.algorithm.advantage.gae import accumulate


def remax(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = r_t + ... + r_T - b, b the reward of the prompt's greedy response (arXiv 2310.10505, algorithm 1).

    Raises ValueError when the episodes have no baselines.
    """
    if episodes.baselines is None:
        raise ValueError("remax needs the rewards of the greedy responses")
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, gamma=1.0, decay=1.0)
    return Advantages(returns - episodes.spread(episodes.baselines))
