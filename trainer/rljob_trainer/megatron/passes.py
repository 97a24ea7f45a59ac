"""Forward and backward over micro-batches, through megatron's pipeline schedules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron.logprob import log_probs_and_entropy
from rljob_trainer.megatron.metrics import MetricAccumulator
from rljob_trainer.megatron.model import Policy
from rljob_trainer.megatron.packing import MicroBatch, MiniBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.objectives.policy import Sequences, Terms, TokenColumns, objective

Measure = Callable[[MicroBatch, torch.Tensor], Any]
"""What to make of a micro-batch's output, on the last stage."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one model. Every method is collective over the ranks of its model."""

    chunks: Sequence[torch.nn.Module]
    """The pieces of this rank's stage, in their wrappers."""
    config: Any
    """The model's TransformerConfig."""
    heartbeat: Callable[[], None]

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[MicroBatch], measure: Measure) -> list[Any]:
        """What `measure` returns, per micro-batch; empty on all but the last stage."""
        return self._run(micro_batches, measure, training=False)

    def backward(self, batch: MiniBatch, loss: Measure) -> list[Any]:
        """Add gradients to the buffers. `loss` gives a micro-batch's part of the loss, and what it measured, which is returned as by `forward`."""
        # the auxiliary loss of a router, where transformerConfig asks for one, is a sum over tokens (router.py attach_and_log_load_balancing_loss)
        scale = 1.0 / batch.read_tokens
        self.config.moe_grad_scale_func = lambda: torch.tensor(scale, device=batch.micro_batches[0].tokens.device)
        return self._run(batch.micro_batches, partial(_triple, loss), training=True)

    def _run(self, micro_batches: Sequence[MicroBatch], measure: Measure, training: bool) -> list[Any]:
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, measure=measure),
            data_iterator=[iter(micro_batches) for _ in self.chunks],
            model=list(self.chunks),
            num_microbatches=len(micro_batches),
            seq_length=max(m.tokens.shape[1] for m in micro_batches),
            micro_batch_size=1,
            forward_only=not training,
            collect_non_loss_data=not training,
        )

    def _forward(self, data: Any, model: torch.nn.Module, measure: Measure) -> tuple[torch.Tensor, Callable[..., Any]]:
        micro = next(data)
        self.heartbeat()
        kwargs = {"fp32_output": False} if self.config.bf16 else {}
        output = model(micro.tokens, micro.positions, None, packed_seq_params=micro.packed, **kwargs)
        return output, lambda output, non_loss_data=False: measure(micro, output)


def _triple(loss: Measure, micro: MicroBatch, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """As the schedule wants it: the loss, a token count that is not used, and what was measured."""
    value, measured = loss(micro, output)
    return value, torch.zeros((), dtype=torch.int, device=value.device), measured


MEASURED = (*Terms._fields[1:], "on_policy", "on_policy_difference")
"""Of the policy, per response token. The last two: drawn by the policy that is trained, and `difference` of these tokens."""


class PolicyPasses:
    """Log-probabilities of the policy, and the gradient of its objective."""

    def __init__(self, policy: Policy, parallel: ParallelState, spec: RLJobSpec, heartbeat: Callable[[], None]) -> None:
        self._passes = Passes(policy.chunks, policy.config, heartbeat)
        self._vocabulary = policy.vocabulary
        self._parallel, self._algorithm, self._temperature = parallel, spec.algorithm, spec.rollout.sampling.temperature

    def log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float | None = None) -> list[torch.Tensor]:
        """Per micro-batch the log-probabilities [t] of its targets, at the temperature of the rollouts unless another is said; empty on all but
        the last stage."""
        temperature = self._temperature if temperature is None else temperature
        measure = lambda micro, logits: self._log_probs_and_entropy(micro, logits, temperature)[0]  # noqa: E731
        return self._passes.forward(micro_batches, measure)

    def gradients(self, batch: MiniBatch, kl_coefficient: float) -> MetricAccumulator:
        """Add the mini-batch's gradients to the buffers; sums of its metrics over this rank's micro-batches (zeros on all but the last stage)."""
        return self._sum(self._passes.backward(batch, partial(self._loss, kl_coefficient=kl_coefficient)))

    def sums(self, batch: MiniBatch, kl_coefficient: float) -> MetricAccumulator:
        """The same sums, without gradients."""
        loss = lambda micro, logits: self._loss(micro, logits, kl_coefficient)[1]  # noqa: E731
        return self._sum(self._passes.forward(batch.micro_batches, loss))

    def _sum(self, parts: list[MetricAccumulator]) -> MetricAccumulator:
        return sum(parts, MetricAccumulator.zero(MEASURED, self._parallel.device))

    def _log_probs_and_entropy(
        self, micro: MicroBatch, logits: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """logits: [1, t, local vocabulary]."""
        return log_probs_and_entropy(
            logits[0], micro.targets, temperature, self._vocabulary, self._parallel.tensor_group
        )

    def _loss(
        self, micro: MicroBatch, logits: torch.Tensor, kl_coefficient: float
    ) -> tuple[torch.Tensor, MetricAccumulator]:
        log_probs, entropy = self._log_probs_and_entropy(micro, logits, self._temperature)
        columns = micro.columns
        tokens = TokenColumns(
            log_probs=log_probs,
            entropy=entropy,
            old_log_probs=columns.get("old_log_probs", log_probs.detach()),
            rollout_log_probs=columns["rollout_log_probs"],
            reference_log_probs=columns.get("reference_log_probs"),
            advantages=columns["advantages"],
            mask=columns["mask"],
        )
        sequences = Sequences(micro.index, len(micro.row.samples), self._parallel.over_context)
        terms = objective(self._algorithm, kl_coefficient, tokens, sequences)
        loss = (columns["weights"] * terms.loss).sum()
        on_policy = columns["on_policy"] * columns["mask"]
        measured = dict(zip(MEASURED, (*terms[1:], on_policy, on_policy * terms.difference), strict=True))
        return loss, MetricAccumulator.of(loss, columns["mask"], measured)
