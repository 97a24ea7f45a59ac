"""The objective of the policy for algorithms of the GRPO and PPO family (spec.algorithm)."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.advantages import READ_REWARD_TIMING, estimate
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.losses import token_weights
from rljob_trainer.algorithm.objective import (
    TOKENS,
    Column,
    MeasuredStep,
    MetricAccumulator,
    Objective,
    Output,
    Targets,
    TokenLoss,
)
from rljob_trainer.algorithm.shaping import DifficultyBand, difficulty_band, overlong_penalty
from rljob_trainer.algorithm.terms import Terms, adapt, policy_terms, token_rewards
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns
from rljob_trainer.algorithm.user_functions import Formulas
from rljob_trainer.algorithm.value import ValueObjective
from rljob_trainer.wire.batch import TEACHER_LOG_PROBS, Columns, candidates
from rljob_trainer.wire.parity import SIDES, Compared, RunLimit, arithmetic_of
from rljob_trainer.wire.trajectory import Bools

MEANS = {
    "train/policy_loss": "policy",
    "train/kl": "kl",
    "train/entropy": "entropy",
    "train/approx_kl": "approx_kl",
    "train/clip_fraction": "clipped",
    "train/ratio_mean": "ratio",
    "train/rejected": "rejected",
    "train_rollout/log_prob_diff_mean": "difference",
    "train_rollout/kl": "mismatch_kl",
    "train_rollout/ratio_mean": "mismatch_ratio",
    "train_rollout/weight_mean": "weight",
    "train_rollout/policy_age": "age",
}
"""[metric] -> per-token metric of which it is the mean over the tokens in the loss."""
TEACHER_KL = "train/teacher_kl"
REFERENCE_LOG_PROBS: Column = "reference_log_probs"
LARGEST = {"train_rollout/log_prob_diff_max": "difference", "train_rollout/policy_age_max": "age"}


class PolicyObjective(Objective):
    """The objective of spec.algorithm. Its state is the coefficient of the KL penalty, which a controller may adapt."""

    prefix = "train"
    critic: ValueObjective | None
    token_metrics = (*Terms._fields[1:], "age", "on_policy", "on_policy_difference", *SIDES)
    """After the age: whether the policy that is being trained sampled the token, and for such tokens `difference`, and whether the trainer and
    the rollouts have no number for them."""

    def __init__(self, spec: RLJobSpec) -> None:
        """Raises ConfigurationError for a user's function that cannot be loaded."""
        self._spec = spec
        self._parity = RunLimit(arithmetic_of(spec))
        self._algorithm = spec.algorithm.model_copy(update={"rollout_correction": spec.rollout_correction})
        self._formulas = Formulas.of(spec.algorithm)
        self.files = self._formulas.files
        self._bypass = spec.algorithm.rollout_correction.bypass
        self._comparable = spec.train.batches.replay is None and not spec.keeps_requests
        """Whether rollouts computed the tokens of the policy that is trained as the trainer does. Requests that are kept have keys and values of
        older policies; with them every update is probed (parity.py)."""
        self.temperature = spec.rollout.sampling.temperature
        self.critic = ValueObjective(spec.critic) if spec.critic else None
        self.kl_coefficient = spec.algorithm.kl.coefficient
        self.needs = frozenset(self._needs())

    def _needs(self) -> list[Column]:
        """With a single optimizer step the old log-probabilities are those of the training pass itself, detached; with bypass none are needed."""
        several = Amounts.of(self._spec).updates > 1 or self._penalises_reward or self._rewards_tokens
        needs: list[tuple[Column, bool]] = [
            (REFERENCE_LOG_PROBS, self._algorithm.has_reference),
            ("old_log_probs", several and not self._bypass),
            ("values", self.critic is not None),
        ]
        return [name for name, needed in needs if needed]

    @property
    def _penalises_reward(self) -> bool:
        """The KL penalty is subtracted from rewards, so old and reference log-probabilities are needed before the first update."""
        return self._algorithm.kl.coefficient > 0 and self._algorithm.kl.where == "reward"

    @property
    def _rewards_tokens(self) -> bool:
        """The teacher's log-probabilities become rewards of tokens, for which old log-probabilities are needed before the first update."""
        return self._algorithm.distillation is not None and self._algorithm.distillation.where == "reward"

    @property
    def _rewards_turns(self) -> bool:
        """Turns of an agent may have rewards of their own, and the estimator's result depends on when they were earned."""
        return self._spec.rollout.agent is not None and self._algorithm.advantage in READ_REWARD_TIMING

    @property
    def _teacher(self) -> str:
        """Name of the column with the teacher's log-probabilities of the sampled tokens."""
        distillation = self._algorithm.distillation
        return REFERENCE_LOG_PROBS if distillation and distillation.reference else TEACHER_LOG_PROBS

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        return token_weights(counts, self._algorithm.aggregation, self._spec.longest_response)

    def learns(self, step: int) -> bool:
        """The policy is not updated while the critic warms up."""
        return self._spec.critic is None or step > self._spec.critic.warmup_steps

    def advantages(self, step: MeasuredStep) -> Targets:
        """The advantage of every response token; with a critic also its returns, and a mask when rows are left out of the loss. Computed on the CPU
        in float64; see Episodes for why the result does not depend on how the step is distributed over ranks."""
        columns = step.batch.columns
        episodes = self._episodes(step)
        estimated = estimate(episodes, self._algorithm, self._formulas.advantages)
        targets = {"advantages": step.by_row(estimated.advantages)}
        metrics: dict[str, float] = {}
        bands = self._difficulty_bands(columns)
        left_out = self._left_out(columns, bands)
        if left_out.any():
            learnt = step.by_row(episodes.mask)
            targets["mask"] = {row: mask * float(not left_out[row]) for row, mask in learnt.items()}
        if bands:
            metrics |= {f"train/too_{kind}": list(bands.values()).count(kind) / len(bands) for kind in ("hard", "easy")}
        if self.critic and estimated.returns is not None:
            targets["returns"] = step.by_row(estimated.returns)
            metrics |= self.critic.explained(estimated.returns, episodes)
        return Targets(targets, metrics)

    def _episodes(self, step: MeasuredStep) -> Episodes:
        """The episodes of the n rows with a response."""
        columns = step.batch.columns
        kept = torch.from_numpy(columns.response_length > 0)
        counts = torch.zeros(len(columns), dtype=torch.int64)
        counts[step.rows] = torch.from_numpy(columns.response_length[step.rows]).long()
        baselines = torch.from_numpy(columns.baseline_reward)[kept]
        return Episodes(
            rewards=torch.from_numpy(columns.reward)[kept],
            groups=torch.from_numpy(columns.group)[kept],
            counts=counts[kept],
            mask=step.learnt().double(),
            token_rewards=self._penalties(step),
            own_rewards=self._teacher_rewards(step) if self._rewards_tokens else None,
            trajectories=torch.from_numpy(columns.trajectory)[kept],
            turn_rewards=step.own("turn_rewards").double() if self._rewards_turns else None,
            values=step.own("values").double() if self.critic else None,
            baselines=None if baselines.isnan().any() else baselines,
            over_ranks=step.over_ranks,
        )

    def _difficulty_bands(self, columns: Columns) -> dict[int, DifficultyBand]:
        """By group: where its mean reward, before the penalty for overlong responses, lies relative to spec.algorithm.difficulty.

        Empty without such bounds, and with dynamic sampling, which has already selected by them.
        """
        difficulty, longest = self._algorithm.difficulty, self._spec.longest_response
        if difficulty is None or self._algorithm.dynamic_sampling:
            return {}
        first = np.flatnonzero(columns.branch == 0)
        lengths = np.maximum.reduceat(columns.response_length, first)
        rewards: dict[int, list[float]] = defaultdict(list)
        for group, reward, length in zip(columns.group[first], columns.reward[first], lengths, strict=True):
            rewards[int(group)].append(float(reward) + overlong_penalty(int(length), longest, self._algorithm.overlong))
        return {group: difficulty_band(of_group, difficulty) for group, of_group in rewards.items()}

    def _left_out(self, columns: Columns, bands: Mapping[int, DifficultyBand]) -> Bools:
        """[n], True for rows that count in advantages but not in the loss: truncated ones with overlong.filter, and those of groups that are too
        hard or too easy."""
        cut = columns.truncated & self._algorithm.overlong.filter
        return cut | np.array([bands.get(int(group), "kept") != "kept" for group in columns.group], np.bool_)

    def _penalties(self, step: MeasuredStep) -> torch.Tensor:
        """[t], the KL penalty as rewards of tokens."""
        if not self._penalises_reward:
            return torch.zeros(int(step.batch.columns.response_length[step.rows].sum()), dtype=torch.float64)
        ours, reference = self._old_log_probs(step), step.own(REFERENCE_LOG_PROBS).double()
        return token_rewards(self._algorithm.kl.estimator, self.kl_coefficient, ours, reference)

    def _teacher_rewards(self, step: MeasuredStep) -> torch.Tensor:
        """[t], coefficient x (log teacher - log policy), an unbiased estimate of -coefficient x KL(policy || teacher)."""
        distillation = self._algorithm.distillation
        assert distillation is not None
        teacher = step.own(self._teacher).double()
        return token_rewards("k1", distillation.coefficient, self._old_log_probs(step), teacher)

    def _old_log_probs(self, step: MeasuredStep) -> torch.Tensor:
        """[t], old log-probabilities; with bypass those of the rollouts."""
        return step.own("rollout_log_probs" if self._bypass else "old_log_probs").double()

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        ids, of_teacher = self._candidates(columns)
        predicted = output.predictions(self.temperature, ids)
        mask = columns["mask"]
        tokens = TokenColumns(
            log_probs=predicted.log_probs,
            entropy=predicted.entropy,
            old_log_probs=columns.get("old_log_probs", predicted.log_probs.detach()),
            rollout_log_probs=columns["rollout_log_probs"],
            reference_log_probs=columns.get(REFERENCE_LOG_PROBS),
            teacher_log_probs=columns.get(self._teacher) if self._algorithm.distillation else None,
            advantages=columns["advantages"],
            mask=mask,
            candidates=None if ids is None else predicted.candidates,
            teacher_candidates=of_teacher,
        )
        terms = policy_terms(self._algorithm, self._formulas.loss, self.kl_coefficient, tokens, sequences)
        age = columns["age"] * mask
        on_policy = (columns["age"] == 0) * mask * self._comparable
        no_number = [
            on_policy * ~log_probs.isfinite() for log_probs in (tokens.old_log_probs, tokens.rollout_log_probs)
        ]
        further = (age, on_policy, on_policy * terms.difference, *no_number)
        metrics = dict(zip(self.token_metrics, (*terms[1:], *further), strict=True))
        return TokenLoss(terms.loss, mask, metrics, tokens.old_log_probs.where(mask > 0, math.nan))

    def _candidates(self, columns: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Ids and log-probabilities [t, K] of the teacher's likeliest tokens."""
        distillation = self._algorithm.distillation
        if distillation is None or distillation.top_k is None:
            return None, None
        ids, of_teacher = (torch.stack([columns[n] for n in of], -1) for of in candidates(distillation.top_k))
        return ids.long(), of_teacher

    def check(self, sums: MetricAccumulator, update: int) -> None:
        """Raise MismatchError when trainer and rollouts obviously do not have the same policy, from tokens that are on-policy. With bypass this is
        possible only before the first update, because the policy then changes and old log-probabilities are not kept."""
        on_policy = sums["on_policy"]
        if on_policy and not (self._bypass and update):
            mean, worst = sums["on_policy_difference"] / on_policy, sums.max("on_policy_difference")
            no_number = {side: int(sums[side]) for side in SIDES}
            self._parity.require(Compared(mean, worst, int(on_policy), no_number), update)

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        means = MEANS | ({TEACHER_KL: "teacher_kl"} if self._algorithm.distillation else {})
        return (
            {name: sums.mean(column) for name, column in means.items()}
            | {name: sums.max(column) for name, column in LARGEST.items()}
            | {
                "train_rollout/effective_sample_size": _effective(sums),
                "train/kl_coefficient": self.kl_coefficient,
            }
        )

    def after(self, metrics: Mapping[str, float], trajectories: int) -> None:
        """Adapt the coefficient of the KL penalty to the mean KL of the step."""
        adaptive, kl = self._algorithm.kl.adaptive, metrics.get("train/kl", math.nan)
        if adaptive and math.isfinite(kl):
            self.kl_coefficient = adapt(self.kl_coefficient, kl, trajectories, adaptive)

    def state(self) -> dict[str, Any]:
        return {"kl_coefficient": self.kl_coefficient, "parity": self._parity.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._parity.load_state(state["parity"])
        if self._algorithm.kl.adaptive:
            self.kl_coefficient = state["kl_coefficient"]


def _effective(sums: MetricAccumulator) -> float:
    """Effective sample size of the importance ratios r of trainer and rollouts: (sum r)^2 / (n sum r^2)."""
    squares = sums[TOKENS] * sums["mismatch_square"]
    return sums["mismatch_ratio"] ** 2 / squares if squares else math.nan
