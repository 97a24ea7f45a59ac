"""Advantage estimators by their name in spec.algorithm.advantage: (rewards [n], groups [n]) -> advantages [n]."""

from collections.abc import Callable

import torch

from rljob_trainer.algorithm.advantage.grpo import grpo

ADVANTAGES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"grpo": grpo}
