"""spec.sft and spec.dpo: the losses of supervised tasks."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import Fraction, NonNegativeFloat, Number, PositiveFloat


class SftSpec(Model):
    """The cross entropy of the tokens that are learnt."""

    label_smoothing: Fraction = 0.0
    """Share e of the target that is spread over the vocabulary evenly: (1 - e) x cross entropy + e x the mean over all tokens of -log probability
    (arXiv 1512.00567, section 7)."""
    aggregation: Literal["tokenMean", "sequenceMean"] = "tokenMean"
    """How the losses of tokens are averaged over a mini-batch, over all ranks. `tokenMean`: sum over all learnt tokens / their number;
    `sequenceMean`: mean over sequences of each one's mean."""


class DpoSpec(Model):
    """The loss of pairs. Of a pair, d is the difference between the chosen and the rejected answer in log(policy / reference), summed over tokens."""

    loss: Literal["sigmoid", "ipo", "hinge", "simpo", "orpo"] = "sigmoid"
    """`sigmoid`: -log sigmoid(beta d) (arXiv 2305.18290); `ipo`: (d - 1 / (2 beta))^2 of means over tokens (arXiv 2310.12036); `hinge`:
    max(0, 1 - beta d) (arXiv 2305.10425); `simpo`: -log sigmoid(beta x difference of mean log-probabilities - `margin`) (arXiv 2405.14734);
    `orpo`: cross entropy of the chosen answer - beta x log sigmoid(log odds ratio) (arXiv 2403.07691). The last two hold no reference."""
    beta: PositiveFloat = 0.1
    """How strongly preferences are held against the reference. SimPO's paper uses 2 to 10, with means over tokens."""
    label_smoothing: Annotated[Number, Field(ge=0, le=0.5)] = 0.0
    """Probability that a pair's order is wrong (conservative DPO, `loss: sigmoid`)."""
    margin: NonNegativeFloat = 0.0
    """By how much the chosen answer's reward has to lead: gamma of `loss: simpo`."""
    sft_coefficient: NonNegativeFloat = 0.0
    """Weight of the chosen answer's cross entropy per token, which is added to the loss. `orpo` has it already."""

    @property
    def has_reference(self) -> bool:
        return self.loss in ("sigmoid", "ipo", "hinge")
