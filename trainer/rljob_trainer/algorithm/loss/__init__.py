"""Policy losses by their name in spec.algorithm.loss: (log-ratio [t], advantages [t], low, high) -> PolicyLoss."""

from collections.abc import Callable

import torch

from rljob_trainer.algorithm.loss.ppo import PolicyLoss, ppo

LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, float, float], PolicyLoss]] = {"ppo": ppo}
