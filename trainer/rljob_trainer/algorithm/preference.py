"""Objectives over pairs of a chosen and a rejected response: reward models, and preference optimization without one.

To add a loss of preferences: write a function of (Responses, DpoSpec), put it into LOSSES, and name it in spec.dpo.loss
(operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from rljob_api.spec.algorithm import DpoSpec
from rljob_trainer.algorithm.objective import MeasuredStep, MetricAccumulator, Objective, Output, Targets, TokenLoss
from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.wire.batch import Columns

LARGEST_MEAN = -1e-7
"""Upper bound of a mean log-probability in ORPO's odds, which are infinite at 0."""


class PairTerms(NamedTuple):
    """Loss and metrics of k pairs. All float64."""

    loss: torch.Tensor
    """[k]"""
    token_metrics: Mapping[str, torch.Tensor]
    """[name in PairObjective.token_metrics] -> [k]."""


class PairObjective(Objective):
    """The mean loss over the pairs of a mini-batch. A pair is a group: sample 0 was chosen, sample 1 rejected."""

    prefix = "train"
    pairs = True
    token_metrics: tuple[str, ...] = ("pairs", "accuracy", "chosen_reward", "rejected_reward")

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        return [2 / len(counts)] * len(counts)

    def advantages(self, step: MeasuredStep) -> Targets:
        """Raises ValueError when a group is not a pair."""
        require_pairs(step.batch.columns)
        return Targets()

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        means = {name: sums[name] / sums["pairs"] for name in self.token_metrics[1:]}
        margin = means["chosen_reward"] - means["rejected_reward"]
        return {f"train/{name}": mean for name, mean in means.items()} | {"train/margin": margin}


def require_pairs(columns: Columns) -> None:
    groups, samples = columns.group.tolist(), columns.sample.tolist()
    paired = samples == [0, 1] * (len(samples) // 2) and groups[::2] == groups[1::2]
    if not paired or not columns.response_length.all():
        raise ValueError("a group of the step is not a chosen and a rejected response")


def margins(of_responses: torch.Tensor) -> torch.Tensor:
    """[k, 2] -> [k]: value of the chosen response minus that of the rejected one."""
    return of_responses[:, 0] - of_responses[:, 1]


def pair_terms(loss: torch.Tensor, rewards: torch.Tensor) -> PairTerms:
    """`loss`: [k]. `rewards`: [k, 2], of the chosen and the rejected response, for the metrics."""
    chosen, rejected = rewards.detach().unbind(1)
    ahead = (chosen > rejected).double()
    return PairTerms(loss, {"accuracy": ahead, "chosen_reward": chosen, "rejected_reward": rejected})


def pair_loss(
    values: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
    terms_of: Callable[[torch.Tensor, torch.Tensor], PairTerms],
) -> TokenLoss:
    """A loss of pairs in the form of a per-token loss, so that responses may be split over context-parallel ranks.

    The loss of a pair depends on the sums of `values` over its two responses. Each token gets an equal share of the pair's loss as its value, and
    as its gradient that of the loss with respect to the sum of its response.

    Args:
        values: [t], with gradients, summed over the masked tokens of each response
        terms_of: sums [k, 2] with gradients and numbers of tokens [k, 2], of chosen and rejected responses -> terms of the k pairs
    """
    sums, lengths = sequences.total(torch.stack((values.detach() * mask, mask), dim=1)).unbind(1)
    with torch.enable_grad():
        sums = sums.detach().requires_grad_()
        terms = terms_of(sums.view(-1, 2), lengths.view(-1, 2))
        (slopes,) = torch.autograd.grad(terms.loss.sum(), sums)
    share = mask / sequences.spread(lengths).clamp(min=1) / 2

    def of_pairs(x: torch.Tensor) -> torch.Tensor:
        return sequences.spread(x.detach().repeat_interleave(2)) * share

    slope = sequences.spread(slopes) * (values - values.detach()) * mask
    measured = {"pairs": torch.ones_like(terms.loss)} | dict(terms.token_metrics)
    return TokenLoss(of_pairs(terms.loss) + slope, mask, {name: of_pairs(x) for name, x in measured.items()})


class RewardModelObjective(PairObjective):
    """L = -log sigmoid(r_chosen - r_rejected), r the value at the last token of a response (Bradley and Terry 1952; arXiv 2203.02155, equation 1)."""

    scores = True

    def advantages(self, step: MeasuredStep) -> Targets:
        """Adds the column `last`, 1 for the last token of each response."""
        super().advantages(step)
        lengths = step.batch.columns.response_length
        return Targets({"last": {row: last(int(lengths[row])) for row in step.rows}})

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        return pair_loss(output.values(), columns["last"], sequences, bradley_terry)


def last(count: int) -> torch.Tensor:
    """[count]"""
    column = torch.zeros(count)
    column[-1:] = 1.0
    return column


def bradley_terry(scores: torch.Tensor, lengths: torch.Tensor) -> PairTerms:
    """`scores`: [k, 2]"""
    return pair_terms(-logsigmoid(margins(scores)), scores)


class Responses(NamedTuple):
    """The chosen and the rejected responses of k pairs. All [k, 2], float64."""

    log_probs: torch.Tensor
    """Log-probabilities of whole responses under the policy, with gradients."""
    reference_log_probs: torch.Tensor
    """The same under the reference; 0 for losses without a reference."""
    lengths: torch.Tensor
    """Tokens."""

    @property
    def means(self) -> torch.Tensor:
        """Mean log-probability per token under the policy."""
        return self.log_probs / self.lengths

    @property
    def ratios(self) -> torch.Tensor:
        """log policy - log reference."""
        return self.log_probs - self.reference_log_probs


class Preference(NamedTuple):
    """The result of a preference loss for k pairs."""

    loss: torch.Tensor
    """[k]"""
    rewards: torch.Tensor
    """[k, 2], the implicit rewards of the responses."""


def sigmoid(responses: Responses, dpo: DpoSpec) -> Preference:
    """L = -(1 - e) log sigmoid(d) - e log sigmoid(-d), d the difference of the rewards beta (log policy - log reference).

    DPO, arXiv 2305.18290, equation 7; e is labelSmoothing, the probability that a pair's order is wrong: conservative DPO (Mitchell 2023, "A
    note on DPO with noisy preferences").
    """
    rewards = dpo.beta * responses.ratios
    d, e = margins(rewards), dpo.label_smoothing
    return Preference(-(1 - e) * logsigmoid(d) - e * logsigmoid(-d), rewards)


def ipo(responses: Responses, dpo: DpoSpec) -> Preference:
    """L = (h - 1 / (2 beta))^2, h the difference of (log policy - log reference) per token.

    IPO, arXiv 2310.12036, equation 17. The paper sums over whole responses; TRL and LLaMA-Factory take the mean over tokens, as here, which makes the
    target 1 / (2 beta) independent of the length.
    """
    means = responses.ratios / responses.lengths
    return Preference((margins(means) - 1 / (2 * dpo.beta)) ** 2, dpo.beta * means)


def hinge(responses: Responses, dpo: DpoSpec) -> Preference:
    """L = max(0, 1 - d), d as in `sigmoid`: SLiC's calibration (arXiv 2305.10425) of likelihoods over the reference's (RSO, arXiv 2309.06657)."""
    rewards = dpo.beta * responses.ratios
    return Preference((1 - margins(rewards)).clamp(min=0), rewards)


def simpo(responses: Responses, dpo: DpoSpec) -> Preference:
    """L = -log sigmoid(d - gamma), d the difference of the rewards beta x log policy per token; gamma is `margin` (arXiv 2405.14734, equation 6)."""
    rewards = dpo.beta * responses.means
    return Preference(-logsigmoid(margins(rewards) - dpo.margin), rewards)


def orpo(responses: Responses, dpo: DpoSpec) -> Preference:
    """L = -log p_c - beta log sigmoid(log odds_c - log odds_r), odds = p / (1 - p), log p the mean over the tokens of a response (arXiv
    2403.07691, section 4)."""
    means = responses.means
    odds = means - (-torch.expm1(means.clamp(max=LARGEST_MEAN))).log()
    return Preference(-means[:, 0] - dpo.beta * logsigmoid(margins(odds)), dpo.beta * means)


LOSSES: dict[str, Callable[[Responses, DpoSpec], Preference]] = {
    "sigmoid": sigmoid,
    "ipo": ipo,
    "hinge": hinge,
    "simpo": simpo,
    "orpo": orpo,
}
"""[name in spec.dpo.loss] -> loss."""


class PreferenceObjective(PairObjective):
    """The objective of spec.dpo."""

    token_metrics = (*PairObjective.token_metrics, "chosen_log_prob", "rejected_log_prob")

    def __init__(self, dpo: DpoSpec) -> None:
        self._dpo = dpo
        self.needs = frozenset({"reference_log_probs"} if dpo.has_reference else ())

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        log_probs, mask = output.predictions(self.temperature).log_probs, columns["mask"]
        reference = columns["reference_log_probs"] if self.needs else torch.zeros_like(mask)
        references = sequences.total((reference * mask)[:, None]).view(-1, 2)

        def terms_of(sums: torch.Tensor, lengths: torch.Tensor) -> PairTerms:
            return preference_terms(Responses(sums, references, lengths), self._dpo)

        return pair_loss(log_probs, mask, sequences, terms_of)


def preference_terms(responses: Responses, dpo: DpoSpec) -> PairTerms:
    """Loss and metrics of k pairs, with sftCoefficient x the cross entropy per token of the chosen response added to the loss, which keeps that
    response likely (arXiv 2404.19733)."""
    preference = LOSSES[dpo.loss](responses, dpo)
    pairs = pair_terms(preference.loss - dpo.sft_coefficient * responses.means[:, 0], preference.rewards)
    chosen, rejected = responses.log_probs.detach().unbind(1)
    return PairTerms(pairs.loss, {**pairs.token_metrics, "chosen_log_prob": chosen, "rejected_log_prob": rejected})
