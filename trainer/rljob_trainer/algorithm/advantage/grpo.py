"""Group-relative advantages."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec, Group
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes, by_group

EPSILON = 1e-6


def grpo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = (R_i - mean_g) / (std_g + 1e-6) for every token, over the responses to one prompt (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    The paper leaves the standard deviation open; ddof 1 is what verl, slime, ROLL, RLinf and SkyRL use. `divideByStd: false` is Dr. GRPO's
    A_i = R_i - mean_g (arXiv 2503.20783, section 3.2). `leaveOneOut`: mean and deviation of the group's other responses, undivided where
    these are equal or only one, as NeMo RL has it; a division by almost 0 would let one response outweigh the step.

    A group of one (the others' rewards failed) has advantage 0: there is nothing to compare with, and the raw reward in its place would
    reinforce the response by where the reward's zero happens to lie.
    """
    return Advantages(
        episodes.spread(by_group(episodes.outcomes, episodes.groups, lambda r: relative(r, algorithm.group)))
    )


def relative(rewards: torch.Tensor, group: Group) -> torch.Tensor:
    """[k] -> [k], for the responses of one group."""
    if len(rewards) == 1:
        return torch.zeros_like(rewards)
    if group.leave_one_out:
        return _left_out(rewards, group.divide_by_std)
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + EPSILON) if group.divide_by_std else centred


def _left_out(rewards: torch.Tensor, divide: bool) -> torch.Tensor:
    count = len(rewards)
    others = rewards.repeat(count, 1)[~torch.eye(count, dtype=torch.bool)].view(count, count - 1)
    centred = rewards - others.mean(1)
    if not divide or count == 2:
        return centred
    std = others.std(1)
    return centred / torch.where(std > EPSILON, std + EPSILON, 1.0)
