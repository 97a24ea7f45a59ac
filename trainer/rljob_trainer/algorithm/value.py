"""The objective of the critic."""

from collections.abc import Mapping, Sequence

import torch

from rljob_api.spec.roles import CriticSpec
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.losses import value_loss
from rljob_trainer.algorithm.objective import MetricAccumulator, Objective, Output, TokenLoss
from rljob_trainer.algorithm.tokens import Sequences

CRITIC_COLUMNS = ("returns", "mask")
"""The columns of the policy's targets that a critic on a gang of its own needs; the second only if there is one."""


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

    def explained(self, returns: torch.Tensor, episodes: Episodes) -> dict[str, float]:
        """Explained variance, 1 - Var(returns - values) / Var(returns), over all sampled tokens of the step: 1 for a perfect critic, 0 for a constant
        one. `returns`: [t]. Collective."""
        assert episodes.values is not None, "a critic gives values"
        spread, left = (float(episodes.moments(x)[2]) for x in (returns, returns - episodes.values))
        return {"critic/explained_variance": 1.0 - left / spread if spread else 0.0}
