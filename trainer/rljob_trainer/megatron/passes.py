"""Forward and backward over a mini-batch's micro-batches, through megatron's pipeline schedules."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.aggregation import token_mean
from rljob_trainer.algorithm.objective import objective
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns
from rljob_trainer.megatron.batching import MicroBatch, MiniBatch
from rljob_trainer.megatron.logprob import log_probs_and_entropy
from rljob_trainer.megatron.model import Policy
from rljob_trainer.megatron.parallel import Place
from rljob_trainer.megatron.sums import Sums

LossFunction = Callable[..., Any]


class Passes:
    """The passes of one policy. Every method is collective over the ranks of its model."""

    def __init__(
        self, policy: Policy, place: Place, algorithm: AlgorithmSpec, temperature: float, beat: Callable[[], None]
    ) -> None:
        self._policy, self._place, self._algorithm, self._temperature, self._beat = (
            policy,
            place,
            algorithm,
            temperature,
            beat,
        )

    @torch.no_grad()
    def log_probs(self, batch: MiniBatch) -> list[torch.Tensor]:
        """Per micro-batch the log-probabilities [t] of its targets; empty on all but the last stage."""
        return self._run(batch, lambda _, log_probs, __: log_probs, training=False)

    def gradients(self, batch: MiniBatch) -> Sums:
        """Add the mini-batch's gradients to the buffers; sums of its metrics over this rank's micro-batches (zeros on all but the last stage)."""
        parts = self._run(batch, partial(self._loss, denominator=batch.response_tokens), training=True)
        return sum(parts, Sums.zero(self._place.device))

    def _run(self, batch: MiniBatch, function: LossFunction, training: bool) -> list[Any]:
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, function=function),
            data_iterator=iter(batch.micro_batches),
            model=[self._policy.ddp],
            num_microbatches=len(batch.micro_batches),
            seq_length=max(m.tokens.shape[1] for m in batch.micro_batches),
            micro_batch_size=1,
            forward_only=not training,
            collect_non_loss_data=not training,
        )

    def _forward(self, data: Any, model: torch.nn.Module, function: LossFunction) -> tuple[torch.Tensor, LossFunction]:
        micro = next(data)
        self._beat()
        kwargs = {"fp32_output": False} if self._policy.config.bf16 else {}
        output = model(micro.tokens, micro.positions, None, packed_seq_params=micro.packed, **kwargs)
        return output, partial(self._measure, micro, function)

    def _measure(
        self, micro: MicroBatch, function: LossFunction, logits: torch.Tensor, non_loss_data: bool = False
    ) -> Any:
        """Called by the schedule on the last stage. logits: [1, t, local vocabulary]."""
        log_probs, entropy = log_probs_and_entropy(
            logits[0], micro.targets, self._temperature, self._policy.vocabulary, self._place.tensor_group
        )
        return function(micro, log_probs, entropy)

    def _loss(
        self, micro: MicroBatch, log_probs: torch.Tensor, entropy: torch.Tensor, denominator: int
    ) -> tuple[torch.Tensor, torch.Tensor, Sums]:
        """The schedule's triple: this micro-batch's part of the loss, a token count that is not used, and its metrics."""
        old = log_probs.detach() if micro.old_log_probs is None else micro.old_log_probs
        tokens = TokenColumns(
            log_probs, entropy, old, micro.rollout_log_probs, micro.reference_log_probs, micro.advantages, micro.mask
        )
        terms = objective(self._algorithm, self._algorithm.kl.coefficient, tokens, _sequences(micro))
        loss = token_mean(terms.loss, micro.mask, denominator)
        sums = Sums.of(loss, terms, entropy, old, micro)
        return loss, torch.zeros((), dtype=torch.int, device=loss.device), sums


def _sequences(micro: MicroBatch) -> Sequences:
    lengths = micro.packed.cu_seqlens_q.diff()
    return Sequences(torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths), len(lengths))
