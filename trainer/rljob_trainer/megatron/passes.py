"""Forward and backward passes over micro-batches, through megatron's pipeline schedules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

from rljob_trainer.algorithm.tokens import Predictions
from rljob_trainer.megatron.compat import pipeline_shapes
from rljob_trainer.megatron.logprob import predictions
from rljob_trainer.megatron.packing import MicroBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.routing import Routing
from rljob_trainer.megatron.step import MiniBatch

Measure = Callable[[MicroBatch, torch.Tensor], Any]
"""A function of a micro-batch and the model's output, called on the last pipeline stage."""


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one model. Every method is collective over the ranks of the model."""

    chunks: Sequence[torch.nn.Module]
    """The wrapped model chunks of this rank's stage."""
    config: Any
    """The model's TransformerConfig."""
    heartbeat: Callable[[], None]
    routing: Routing
    """Router replay of the chunks."""

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[MicroBatch], measure: Measure) -> list[Any]:
        """The result of `measure` for each micro-batch; an empty list on all but the last stage."""
        return self._run(micro_batches, measure, training=False)

    def backward(self, batch: MiniBatch, loss: Measure) -> list[Any]:
        """Accumulate gradients. `loss` returns a micro-batch's part of the loss, and metrics, which are returned as by `forward`."""
        # A router's auxiliary loss, if transformerConfig asks for one, is a sum over tokens (router.py, attach_and_log_load_balancing_loss): scaled
        # to a mean here. A tensor on the device, since every micro-batch reads it, and a copy from the host would wait for the device each time.
        scale = torch.full((), 1.0 / batch.read_tokens, device=batch.micro_batches[0].tokens.device)
        self.config.moe_grad_scale_func = lambda: scale
        return self._run(batch.micro_batches, partial(_for_schedule, loss), training=True)

    def _run(self, micro_batches: Sequence[MicroBatch], measure: Measure, training: bool) -> list[Any]:
        part = self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1
        lengths = [micro.tokens.shape[1] // part for micro in micro_batches]
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, measure=measure),
            data_iterator=[iter(micro_batches) for _ in self.chunks],
            model=list(self.chunks),
            num_microbatches=len(micro_batches),
            seq_length=max(micro.tokens.shape[1] for micro in micro_batches),
            micro_batch_size=1,
            forward_only=not training,
            collect_non_loss_data=not training,
            **pipeline_shapes.arguments(self.config, lengths, len(self.chunks)),
        )

    def _forward(self, data: Any, model: torch.nn.Module, measure: Measure) -> tuple[torch.Tensor, Callable[..., Any]]:
        micro = next(data)
        self.heartbeat()
        kwargs = {"fp32_output": False} if self.config.bf16 else {}
        with self.routing.of(model, micro):
            output = model(
                micro.tokens, micro.positions, None, packed_seq_params=micro.packed, **micro.images, **kwargs
            )
        return output, lambda output, non_loss_data=False: measure(micro, output)


def _for_schedule(loss: Measure, micro: MicroBatch, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The result in the form that megatron's schedule expects: loss, number of tokens (unused), metrics."""
    value, measured = loss(micro, output)
    return value, torch.zeros((), dtype=torch.int, device=value.device), measured


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Implements algorithm.objective.Output, for a language model with `vocabulary` tokens, or for a value model (None)."""

    micro: MicroBatch
    raw: torch.Tensor
    """[1, t, local vocabulary], or values [t, 1, 1]"""
    vocabulary: int | None
    parallel: ParallelState

    def predictions(self, temperature: float, candidates: torch.Tensor | None = None) -> Predictions:
        assert self.vocabulary is not None, "a value model has no log-probabilities"
        group = self.parallel.tensor_group
        logits = self.raw.squeeze(0)  # not raw[0]: its backward pass would copy the gradient into a tensor of zeros
        return predictions(logits, self.micro.targets, temperature, self.vocabulary, group, candidates)

    def values(self) -> torch.Tensor:
        assert self.vocabulary is None, "a language model has no values"
        return self.raw.flatten()
