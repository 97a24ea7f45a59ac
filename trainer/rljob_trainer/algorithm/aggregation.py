"""From losses of tokens to the loss of a mini-batch."""

import torch


def token_mean(values: torch.Tensor, mask: torch.Tensor, denominator: int) -> torch.Tensor:
    """sum(values * mask) / denominator: this part's share of the mean over all response tokens of the mini-batch.

    The denominator is the mini-batch's global count, not this part's: parts then add up to the same loss in any cut over micro-batches and
    ranks. (DAPO, arXiv 2503.14476, section 3.3: every token weighs the same, whatever the length of its response.)

    Args:
        values: [t]
        mask: [t], 1.0 for response tokens
        denominator: response tokens of the whole mini-batch; 0 only when every mask is 0

    Returns: scalar
    """
    return (values * mask).sum() / max(1, denominator)
