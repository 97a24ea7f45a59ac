"""spec.algorithm, spec.train, spec.evaluation: the mathematics and the amounts. Prompts and samples are counted globally per step."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Model
from rljob_api.spec.common import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Sampling


class Clip(Model):
    """Bounds of the probability ratio, which is clipped to [1 - low, 1 + high] (arXiv 1707.06347, equation 7; clip-higher: high > low)."""

    low: PositiveFloat = 0.2
    """Distance below 1."""
    high: PositiveFloat = 0.2
    """Distance above 1."""


class KL(Model):
    """Penalty for leaving the starting policy."""

    coefficient: NonNegativeFloat = 0.0
    """Weight of the penalty; 0 needs no reference model and holds none."""
    estimator: Literal["k3"] = "k3"
    """`k3`: exp(d) - d - 1 with d = log reference - log policy; never negative, low variance (joschu.net/blog/kl-approx)."""


class AlgorithmSpec(Model):
    """How rewards become gradients."""

    advantage: Literal["grpo"] = "grpo"
    """`grpo`: (reward - mean of the prompt's group) / (standard deviation with ddof 1 + 1e-6) (arXiv 2402.03300)."""
    loss: Literal["ppo"] = "ppo"
    """`ppo`: the clipped surrogate."""
    clip: Clip = Clip()
    """Bounds of the probability ratio."""
    kl: KL = KL()
    """Penalty towards the starting policy, inside the loss."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    aggregation: Literal["tokenMean"] = "tokenMean"
    """`tokenMean`: the sum over all response tokens of the mini-batch, divided by their global number."""


class Optimizer(Model):
    """AdamW on megatron's distributed optimizer."""

    learning_rate: PositiveFloat = 1e-6
    """Constant after the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the rate rises linearly from 0."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of matrices; norms and biases have none."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    clip_grad: NonNegativeFloat = 1.0
    """Largest global norm of the gradient; 0 does not clip."""


class BatchRecording(Model):
    """Separate the halves of the loop: keep what was generated, or train on what was kept."""

    record: bool = False
    """Write every step's batch to `batches/` under the checkpoint path."""
    replay: Annotated[str, Field(pattern=r"^/[^\s]*$", max_length=1024)] | None = None
    """Train on the batches recorded in this directory and generate nothing. Same layout, same device: bit-equal losses."""


class TrainSpec(Model):
    """How much, and with which optimizer."""

    steps: PositiveInt
    """Steps of the whole job. One step generates, scores and trains on `promptsPerStep` x `samplesPerPrompt` samples."""
    prompts_per_step: PositiveInt = 64
    """Prompts per step, over all ranks."""
    samples_per_prompt: PositiveInt = 8
    """Responses per prompt: the group of group-relative advantages."""
    mini_batches: PositiveInt = 1
    """Optimizer steps per step. Old log-probabilities are frozen before the first."""
    tokens_per_micro_batch: PositiveInt = 16384
    """Upper bound of packed tokens in one forward and backward pass of one data-parallel rank: this is what bounds activation memory."""
    optimizer: Optimizer = Optimizer()
    """The optimizer of the policy."""
    batches: BatchRecording = BatchRecording()
    """Record or replay batches."""


class EvaluationSpec(Model):
    """Scoring of the held-out prompts."""

    every_steps: NonNegativeInt = 0
    """Evaluate before the first step, after every so many and after the last; 0: never."""
    sampling: Sampling = Sampling(temperature=0.0)
    """One response per held-out prompt; greedy by default."""
