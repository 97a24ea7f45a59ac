"""spec.algorithm, spec.sft and spec.dpo: the mathematics of what is learnt."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import (
    AbsolutePath,
    Fraction,
    FunctionName,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Verbatim,
)


class Clip(Model):
    """Bounds of the probability ratio, which is clipped to [1 - low, 1 + high] (arXiv 1707.06347, equation 7; clip-higher: high > low)."""

    low: PositiveFloat = 0.2
    """Distance below 1. The paper of `gspo` uses 3e-4, where a ratio is that of a whole response."""
    high: PositiveFloat = 0.2
    """Distance above 1. DAPO's clip-higher is 0.28; the paper of `gspo` uses 4e-4."""
    dual: Annotated[Number, Field(gt=1)] | None = None
    """With a negative advantage A, bound the loss by -A x dual (arXiv 1912.09729, equation 5), usually 3; unset: no bound."""


class AdaptiveKL(Model):
    """Steer the coefficient towards a divergence (arXiv 1909.08593, section 2.2)."""

    target: PositiveFloat
    """The KL divergence per response token to hold."""
    horizon: PositiveInt = 10_000
    """Number of samples over which the coefficient grows or shrinks by at most 20 %."""


class KL(Model):
    """Penalty for leaving the reference policy."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the penalty; 0 needs no reference model and holds none."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence of a token, from d = log policy - log reference. `k1`: d; `k2`: d^2 / 2; `k3`: exp(-d) - 1 + d, never negative, low
    variance (joschu.net/blog/kl-approx). Use `k1` with `where: reward`: as a loss its expected gradient is zero."""
    where: Literal["loss", "reward"] = "loss"
    """`loss`: added to the loss; `reward`: taken from every token's reward before advantages are estimated (arXiv 2203.02155)."""
    adaptive: AdaptiveKL | None = None
    """Let the coefficient follow the divergence; unset: it is fixed."""


class Distillation(Model):
    """Learn from a teacher what it thinks of each token that the policy sampled (on-policy distillation: GKD, arXiv 2306.13649; MiniLLM, arXiv
    2306.08543). The teacher has the vocabulary of the policy."""

    pool: Annotated[str, Field(max_length=63)] | None = None
    """Name of the pool of `spec.pools` whose model is the teacher. Exactly one of `pool` and `reference`."""
    reference: bool = False
    """Whether the model of `spec.reference` is the teacher, on the trainer's ranks or on a gang of its own. Exactly one of `pool` and `reference`."""
    coefficient: PositiveFloat = 1.0
    """Weight against the advantages of rewards, or against the policy loss."""
    where: Literal["reward", "loss"] = "reward"
    """`reward`: every token is rewarded for itself, with log teacher - log policy, which is added to its advantage; `loss`: (log policy - log
    teacher)^2 / 2 is added to the loss. The expected gradient of both is that of KL(policy || teacher) of each token."""
    top_k: Annotated[int, Field(ge=1, le=128)] | None = None
    """With `pool` and `where: loss`: add KL(policy || teacher) itself, in place of an estimate from the sampled token. It is computed over this
    number of the teacher's most probable tokens, with all others as one event. Unset: only the sampled token is compared."""


class Group(Model):
    """How `grpo` compares the samples of a prompt."""

    divide_by_std: bool = True
    """Divide by the group's standard deviation (ddof 1) + 1e-6. False is Dr. GRPO (arXiv 2503.20783), with `sequenceMeanTokenSumNorm`."""
    leave_one_out: bool = False
    """Mean and deviation of the other samples of the group, without the sample itself."""


class Rejection(Model):
    """Leave out tokens or responses that the trained policy would hardly generate. Denominators stay the same."""

    level: Literal["token", "sequence"] = "token"
    """`token`: by the ratio of each token; `sequence`: by the geometric mean of a response's ratios, for the response as a whole."""
    low: PositiveFloat = 0.5
    """Smallest ratio of the trainer's old to the rollout's probability that is kept."""
    high: PositiveFloat = 2.0
    """Largest ratio that is kept."""


class RolloutCorrection(Model):
    """Correct for the difference between the policy that generated the tokens, in vLLM's arithmetic, and the trainer's old policy."""

    importance_sampling: Literal["none", "token", "sequence"] | None = None
    """Multiply the policy loss by min(ratio, cap), a constant: of each token, or of the whole response (truncated importance sampling). Unset:
    `token` with `rollout.vllmArgs.quantization`, unless `bypass` is set; otherwise `none`."""
    cap: PositiveFloat = 2.0
    """Upper bound of the importance weight."""
    reject: Rejection | None = None
    """Leave out tokens or responses whose ratio is too far from 1; unset: none."""
    bypass: bool = False
    """Use the rollouts' log-probabilities as the old ones, so that the clipped ratio itself is the correction. Saves a forward pass."""
    router_replay: Literal["none", "trainer", "rollout"] = "none"
    """For a mixture of experts, which of them a token goes to in the trainer. `none`: those that the router chooses; `trainer`: in a step's updates
    those that it chose when the old log-probabilities were measured (R2, arXiv 2507.18071); `rollout`: there and in the updates those that the
    rollouts chose for the response (R3, arXiv 2510.11370)."""


class DynamicSampling(Model):
    """Leave out prompts whose samples all have the same reward, and sample others in their place (DAPO, arXiv 2503.14476, section 3.2)."""

    max_rounds: PositiveInt = 8
    """Rounds of generation in one step, the first included; a step that is still not full then fails the job with the counts."""


class Difficulty(Model):
    """Leave out prompts that are too hard or too easy for the policy, by the mean reward of their samples, before any penalty for length."""

    low: Number = 0.0
    """Prompts whose mean reward is at most this are too hard."""
    high: Number = 1.0
    """Prompts whose mean reward is at least this are too easy."""


class Overlong(Model):
    """Responses near or at maxTokens (DAPO, arXiv 2503.14476, section 3.4)."""

    buffer_tokens: NonNegativeInt = 0
    """Number of tokens before maxTokens over which a penalty grows linearly from 0 to `penalty`; 0: no penalty."""
    penalty: PositiveFloat = 1.0
    """Taken from the reward of a response of maxTokens."""
    filter: bool = False
    """Responses that were cut off at maxTokens keep their place in groups and denominators but give no gradient."""


class AlgorithmFunction(Model):
    """A Python function of your own, which every rank of the trainer calls with tensors."""

    path: AbsolutePath
    """A Python file that all trainer pods can read, for example from a ConfigMap volume. Every rank must find the same content."""
    function: FunctionName
    """Name of the function in the file."""
    arguments: Verbatim = {}
    """Further arguments of the function, by name, the same in every call."""


class AlgorithmSpec(Model):
    """How rewards become gradients."""

    advantage: Literal["grpo", "rloo", "reinforce++", "reinforce++-baseline", "gae", "opo", "remax", "python"] = "grpo"
    """`grpo`: (reward - mean of the prompt's group) / standard deviation (arXiv 2402.03300); `rloo`: reward - mean of the others (arXiv
    2402.14740); `reinforce++`: returns, whitened over the step; `reinforce++-baseline`: group mean taken off first (both arXiv 2501.03262);
    `gae`: with `spec.critic` (arXiv 1506.02438); `opo`: length-weighted baseline (arXiv 2505.23585); `remax`: reward of the greedy response
    as the baseline (arXiv 2310.10505); `python`: the function of `advantageFunction`."""
    advantage_function: AlgorithmFunction | None = None
    """The estimator of `advantage: python`: from the rewards of the whole step to an advantage of each token."""
    group: Group = Group()
    """Options of `advantage: grpo`."""
    gamma: Fraction = 1.0
    """Discount per token of `gae` and `reinforce++`."""
    gae_lambda: Fraction = 1.0
    """Lambda of `advantage: gae`: 1 uses whole returns, 0 single steps."""
    loss: Literal["ppo", "gspo", "cispo", "python"] = "ppo"
    """`ppo`: the clipped surrogate; `gspo`: with the ratio of the whole response (arXiv 2507.18071); `cispo`: a clipped, constant ratio times
    the log-probability (arXiv 2506.13585); `python`: the function of `lossFunction`."""
    loss_function: AlgorithmFunction | None = None
    """The policy loss of `loss: python`: from log-probabilities and advantages of the tokens of a micro-batch to the loss of each."""
    clip: Clip = Clip()
    """Bounds of the probability ratio."""
    kl: KL = KL()
    """Penalty for leaving the reference policy."""
    distillation: Distillation | None = None
    """Learn from a teacher, with or without rewards; unset: there is none."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    reward_clip: PositiveFloat | None = None
    """Bound the reward of a response, after penalties, to plus and minus this before advantages are estimated; unset: no bound."""
    advantage_clip: PositiveFloat | None = None
    """Bound the advantage of every token, after whitening, to plus and minus this; unset: no bound."""
    aggregation: Literal["tokenMean", "sequenceMeanTokenMean", "sequenceMeanTokenSum", "sequenceMeanTokenSumNorm"] = (
        "tokenMean"
    )
    """How the losses of tokens are averaged over a mini-batch, over all ranks. `tokenMean`: sum over all response tokens / their number;
    `sequenceMeanTokenMean`: mean over responses of each one's mean; `sequenceMeanTokenSum`: mean over responses of each one's sum;
    `sequenceMeanTokenSumNorm`: mean over responses of each one's sum / maxTokens."""
    rollout_correction: RolloutCorrection = RolloutCorrection()
    """Correction for the difference between rollout and trainer probabilities. The difference itself is always measured."""
    dynamic_sampling: DynamicSampling | None = None
    """Train only on prompts whose rewards differ; unset: on all."""
    difficulty: Difficulty | None = None
    """Leave out prompts by the mean reward of their samples. With `dynamicSampling` others are sampled in their place; without it, their samples stay
    in groups and denominators and give no gradient. Unset: none are left out."""
    overlong: Overlong = Overlong()
    """Penalty and filter for long responses."""

    @property
    def has_reference(self) -> bool:
        """A frozen policy is compared with, as the penalty's or as the teacher."""
        return self.kl.coefficient > 0 or (self.distillation is not None and self.distillation.reference)


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
