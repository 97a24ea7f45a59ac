"""The objective of a reward model: it gives the response that was chosen a higher score than the one that was rejected."""

from collections.abc import Mapping

import torch
from torch.nn.functional import logsigmoid

from rljob_trainer.objectives.objective import Output, StepColumns, Targets, TokenLoss
from rljob_trainer.objectives.pairs import Judged, PairObjective, judged, lead, pair_loss
from rljob_trainer.objectives.tokens import Sequences


class RewardModelObjective(PairObjective):
    """L = -log sigmoid(r_chosen - r_rejected), r the score of a trajectory's last token (Bradley and Terry 1952; arXiv 2203.02155, equation 1)."""

    scores = True

    def advantages(self, step: StepColumns) -> Targets:
        """The column `last`: 1 for the last token of each trajectory."""
        super().advantages(step)
        return Targets({"last": [last(n) for n in step.batch.columns.response_length.tolist()]})

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        return pair_loss(output.values(), columns["last"], sequences, bradley_terry)


def last(count: int) -> torch.Tensor:
    """[count]"""
    column = torch.zeros(count)
    column[-1:] = 1.0
    return column


def bradley_terry(scores: torch.Tensor, lengths: torch.Tensor) -> Judged:
    """`scores`: [k, 2]"""
    return judged(-logsigmoid(lead(scores)), scores)
