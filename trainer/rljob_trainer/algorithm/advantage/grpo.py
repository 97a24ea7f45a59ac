"""Group-relative advantages."""

import torch

EPSILON = 1e-6


def grpo(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """A_i = (R_i - mean_g) / (std_g + 1e-6), std with ddof 1, over the samples of one prompt (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    The paper leaves ddof open; 1 is what verl, slime, ROLL, RLinf and SkyRL use. A group of one has mean 0 and std 1 by convention, so its
    advantage is its reward. Groups may have different sizes, since samples whose reward failed are gone.

    Args:
        rewards: [n]
        groups: [n] of any integers; samples with the same one belong together

    Returns: [n], in the dtype of `rewards`
    """
    _, group = groups.unique(return_inverse=True)
    size = torch.bincount(group).to(rewards)
    many = size > 1
    mean = torch.zeros_like(size).index_add_(0, group, rewards) / size
    mean = mean.where(many, 0.0)
    squares = torch.zeros_like(size).index_add_(0, group, (rewards - mean[group]) ** 2)
    std = (squares / (size - 1).clamp(min=1)).sqrt().where(many, 1.0)
    return (rewards - mean[group]) / (std[group] + EPSILON)
