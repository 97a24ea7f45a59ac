"""The objective of supervised fine-tuning and pretraining: the cross entropy of given tokens."""

import math
from collections.abc import Mapping, Sequence

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.objectives.losses import token_weights
from rljob_trainer.objectives.metrics import MetricAccumulator
from rljob_trainer.objectives.objective import Objective, Output, TokenLoss
from rljob_trainer.objectives.tokens import Predictions, Sequences

AGGREGATIONS = {"tokenMean": "tokenMean", "sequenceMean": "sequenceMeanTokenMean"}
"""Names of spec.sft.aggregation, and what token_weights calls them."""
LARGEST = 700.0
"""Of what exp can take."""


class CrossEntropyObjective(Objective):
    """Of spec.sft. Its metrics are of the plain cross entropy, without label smoothing."""

    prefix = "train"
    token_metrics = ("cross_entropy", "correct")

    def __init__(self, spec: RLJobSpec) -> None:
        self._sft = spec.sft

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        return token_weights(counts, AGGREGATIONS[self._sft.aggregation])

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        predicted, mask = output.predictions(self.temperature), columns["mask"]
        measured = {"cross_entropy": -predicted.log_probs.detach() * mask, "correct": predicted.correct * mask}
        return TokenLoss(smoothed(predicted, self._sft.label_smoothing) * mask, mask, measured)

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        return {
            "train/perplexity": perplexity(sums.mean("cross_entropy")),
            "train/token_accuracy": sums.mean("correct"),
        }


def smoothed(predicted: Predictions, smoothing: float) -> torch.Tensor:
    """[t]: -(1 - e) log p(y_t) - e mean_v log p(v), the cross entropy with a target of which the share e is spread over the vocabulary
    evenly (arXiv 1512.00567, section 7)."""
    if not smoothing:
        return -predicted.log_probs
    return -(1 - smoothing) * predicted.log_probs - smoothing * predicted.mean_log_probs


def perplexity(cross_entropy: float) -> float:
    """exp of the mean over tokens; infinite where that is no float."""
    return math.exp(cross_entropy) if cross_entropy < LARGEST else math.inf
