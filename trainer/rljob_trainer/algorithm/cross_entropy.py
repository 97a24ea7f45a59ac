"""The objective of supervised fine-tuning and pretraining: cross entropy."""

import math
from collections.abc import Mapping, Sequence

import torch

from rljob_api.spec.algorithm import SftSpec
from rljob_trainer.algorithm.losses import token_weights
from rljob_trainer.algorithm.objective import MetricAccumulator, Objective, Output, TokenLoss
from rljob_trainer.algorithm.tokens import Predictions, Sequences

AGGREGATIONS = {"tokenMean": "tokenMean", "sequenceMean": "sequenceMeanTokenMean"}
"""[spec.sft.aggregation] -> its name in losses.token_weights."""
LARGEST = 700.0
"""exp of more overflows a float."""


class CrossEntropyObjective(Objective):
    """Cross entropy as spec.sft says. Metrics are those of the plain cross entropy, without label smoothing."""

    prefix = "train"
    token_metrics = ("cross_entropy", "correct")

    def __init__(self, sft: SftSpec) -> None:
        self._sft = sft

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
    """[t]: -(1 - e) log p(y_t) - e mean_v log p(v), cross entropy with label smoothing e (arXiv 1512.00567, section 7)."""
    if not smoothing:
        return -predicted.log_probs
    return -(1 - smoothing) * predicted.log_probs - smoothing * predicted.mean_log_probs


def perplexity(cross_entropy: float) -> float:
    """exp of the mean cross entropy per token; infinity where that overflows."""
    return math.exp(cross_entropy) if cross_entropy < LARGEST else math.inf
