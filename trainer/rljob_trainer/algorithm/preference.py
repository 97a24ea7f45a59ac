"""The objective of preference optimization: direct losses of pairs, without a reward model, by their names in spec.dpo.loss.

To add one: write a function of (Responses, DpoSpec), put it into LOSSES, and name it in spec.dpo.loss (operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import DpoSpec
from rljob_trainer.algorithm.objective import Output, TokenLoss
from rljob_trainer.algorithm.pairs import PairObjective, PairTerms, margins, pair_loss, pair_terms
from rljob_trainer.algorithm.tokens import Sequences

LARGEST_MEAN = -1e-7
"""Upper bound of a mean log-probability in ORPO's odds, which are infinite at 0."""


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

    def __init__(self, spec: RLJobSpec) -> None:
        self._dpo = spec.dpo
        self.needs = frozenset({"reference_log_probs"} if spec.dpo.has_reference else ())

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
    found = LOSSES[dpo.loss](responses, dpo)
    pairs = pair_terms(found.loss - dpo.sft_coefficient * responses.means[:, 0], found.rewards)
    chosen, rejected = responses.log_probs.detach().unbind(1)
    return PairTerms(pairs.loss, {**pairs.token_metrics, "chosen_log_prob": chosen, "rejected_log_prob": rejected})
