"""The objective of the critic."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from rljob_api.spec.roles import CriticSpec
from rljob_trainer.objectives.losses import value_loss
from rljob_trainer.objectives.metrics import MetricAccumulator
from rljob_trainer.objectives.objective import Objective, Output, Targets, TokenLoss
from rljob_trainer.objectives.tokens import Sequences


def critic_columns(targets: Targets) -> dict[str, npt.NDArray[np.float32]]:
    """The columns of the policy's targets that a critic on a gang of its own needs (returns, mask), each as one array [response tokens of the
    step]."""
    chosen = {name: values for name, values in targets.columns.items() if name in ("returns", "mask")}
    return {name: torch.cat(list(values)).float().numpy() for name, values in chosen.items()}


class ValueObjective(Objective):
    """Regression to the returns of `gae`, from the columns `values` (before the update) and `returns`."""

    prefix = "critic"
    token_metrics = ("clipped",)

    def __init__(self, critic: CriticSpec) -> None:
        self._clip = critic.clip

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        """The mean over all tokens of the mini-batch, whatever aggregation the policy uses."""
        return [1 / sum(counts)] * len(counts)

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        terms = value_loss(output.values(), columns["values"], columns["returns"], self._clip)
        mask = columns["mask"]
        return TokenLoss(terms.loss * mask, mask, {"clipped": terms.clipped * mask})

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        return {"critic/clip_fraction": sums.mean("clipped")}

    def explained(self, returns: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
        """Explained variance, 1 - Var(returns - values) / Var(returns), over the masked tokens of [n, T]: 1 for a perfect critic, 0 for a constant
        one."""
        returns, values = returns[mask > 0], values[mask > 0]
        spread = float(returns.var(correction=0))
        explained = 1.0 - float((returns - values).var(correction=0)) / spread if spread else 0.0
        return {"critic/explained_variance": explained}
