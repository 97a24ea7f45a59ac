"""One optimizer step with clipping and the handling of non-finite gradients, and the construction of megatron's distributed AdamW with its
schedule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32, get_grad_norm_fp32
from megatron.core.optimizer.optimizer import GRAD_NORM_GROUP_ATTR, MTP_GRAD_NORM_GROUP
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from rljob_api.spec.train import Optimizer
from rljob_trainer.algorithm.objective import LOSS, MetricAccumulator, Objective
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.compat.adam import allocate
from rljob_trainer.megatron.compat.host_adam import HostAdam
from rljob_trainer.megatron.draft.training import DraftTraining
from rljob_trainer.megatron.memory import Offloader, torch_optimizers

MOST_SKIPS = 10
"""Optimizer steps in a row that may be left out. More mean that weights or data are broken, and nothing is learnt any more."""
FIELD = "spec.train.onNonFinite"
GRADIENT = "the gradient"
GRADIENT_OF_LAYER = "the gradient of the layer for multi-token prediction"
GRADIENT_OF_DRAFT = "the gradient of the draft"


class NonFiniteError(RuntimeError):
    """The loss or the gradient is not a number. The parameters are as they were before the optimizer step."""


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step."""

    sums: MetricAccumulator
    """Loss and token metrics, summed over all ranks."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    skipped: bool
    """No parameter was changed, since loss or gradient were not finite (`onNonFinite: skip`)."""


@dataclass(slots=True)
class Learner:
    """Takes the optimizer steps of one network."""

    chunks: Sequence[DistributedDataParallel]
    optimizer: Any
    scheduler: OptimizerParamScheduler
    offloader: Offloader
    most: float
    """Norm to which gradients are clipped; 0: they are not."""
    skips: bool
    """Skip an optimizer step whose loss or gradient is not finite, instead of raising NonFiniteError."""
    draft: DraftTraining | None = None
    """Takes its optimizer steps together with the network."""
    skipped: int = 0
    """Steps in a row that were skipped."""

    def step(self, gradients: Callable[[], MetricAccumulator], check: Callable[[MetricAccumulator], None]) -> Update:
        """Take one optimizer step. Collective; the result is the same on all ranks. Parameters and gradients must be on the device.

        Args:
            gradients: accumulates gradients into the buffers, and returns the sums over all ranks
            check: raises to prevent the step

        Raises what `check` raises, NonFiniteError, and ConfigurationError after MOST_SKIPS skipped steps in a row; parameters and moments are
        unchanged then.
        """
        zero_gradients(self.chunks, self.optimizer)
        measured, rate = gradients(), self.optimizer.param_groups[0]["lr"]
        with self.offloader.using("optimizer"):
            clipped = self._clip()  # queued before `checked` waits for the device, so that the device does not idle
            sums = checked(measured, check)
            norms = {of: float(norm) for of, norm in clipped.items()}
            broken = [f"the norm of {of} is {norm}" for of, norm in norms.items() if not math.isfinite(norm)]
            norm = norms[GRADIENT] if sums.is_finite and not broken else math.nan
            if math.isfinite(norm):
                self.optimizer.step_with_ready_grads()
                self.scheduler.step(1)
                if self.draft:
                    self.draft.step()
        if math.isfinite(norm):
            self.skipped = 0
        else:
            self._skip(" and ".join(broken) if sums.is_finite else f"the loss is {sums[LOSS]}")
        return Update(sums, norm, rate, skipped=not math.isfinite(norm))

    def _clip(self) -> dict[str, torch.Tensor | float]:
        """The norms before, by what they are of."""
        norms = {GRADIENT: clip(self.optimizer, self.most)}
        if self.chunks[0].config.mtp_num_layers:
            norms[GRADIENT_OF_LAYER] = clip_apart(self.optimizer, self.most)
        if self.draft:
            norms[GRADIENT_OF_DRAFT] = self.draft.clip()
        return norms

    def _skip(self, reason: str) -> None:
        """A restart would not help: it would start from weights that were saved meanwhile."""
        if not self.skips:
            raise NonFiniteError(reason)
        self.skipped += 1
        if self.skipped >= MOST_SKIPS:
            rule = f"{self.skipped} optimizer steps in a row were left out: {reason}"
            fix = "go back with `resume --from-step N` to before the first of them, with a lower learning rate or without the data that cause it"
            raise ConfigurationError(FIELD, "skip", rule, fix)


@torch.no_grad()
def begin_anew(chunks: Sequence[DistributedDataParallel], optimizer: Any) -> None:
    """Leave an optimizer that has made no step, and no gradients."""
    zero_gradients(chunks, optimizer)
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            group.pop("step", None)
        for state in inner.state.values():
            for tensor in state.values():
                tensor.zero_()


def zero_gradients(chunks: Sequence[DistributedDataParallel], optimizer: Any) -> None:
    """Forget what was accumulated."""
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()


def clip(optimizer: Any, most: float) -> torch.Tensor | float:
    """Clip the gradient to a norm of `most`, 0: not; returns its norm before. This is the first half of ChainedOptimizer.step;
    `step_with_ready_grads` is the second."""
    optimizer.prepare_grads()
    norm = optimizer.get_grad_norm()
    _scale(optimizer, None, most, norm)
    return norm


def clip_apart(optimizer: Any, most: float) -> torch.Tensor | float:
    """Likewise of the layer for multi-token prediction, which `clip` leaves as it is: the policy's update does not depend on it."""
    parts = optimizer.chained_optimizers
    own = [gradient for part in parts for gradient in part.get_grads_for_grad_norm(MTP_GRAD_NORM_GROUP)]
    norm = get_grad_norm_fp32(own, grad_stats_parallel_group=optimizer.get_grad_stats_parallel_group())
    _scale(optimizer, MTP_GRAD_NORM_GROUP, most, norm)
    return norm


def _scale(optimizer: Any, group: str | None, most: float, norm: Any) -> None:
    for part in optimizer.chained_optimizers:
        parameters = [p for p in part.get_parameters() if getattr(p, GRAD_NORM_GROUP_ATTR, None) == group]
        if most > 0 and parameters:
            of_host_adam = part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8  # whose gradients are elsewhere
            clip_grad_by_total_norm_fp32(parameters, most, norm, of_host_adam)


def checked(measured: MetricAccumulator, check: Callable[[MetricAccumulator], None]) -> MetricAccumulator:
    """Copy the sums to the host, and call `check` on them unless the loss is not finite."""
    sums = measured.on_host()
    if sums.is_finite:
        check(sums)
    return sums


def update_metrics(objective: Objective, updates: Sequence[Update]) -> dict[str, float]:
    """Metrics over the optimizer steps of one training step. Skipped ones count in `skipped` only, unless all were skipped."""
    chosen = [u for u in updates if not u.skipped] or updates
    sums = sum((u.sums for u in chosen[1:]), chosen[0].sums)
    return objective.metrics(sums) | {
        f"{objective.prefix}/loss": sums[LOSS] / len(chosen),
        f"{objective.prefix}/grad_norm": sum(u.grad_norm for u in chosen) / len(chosen),
        f"{objective.prefix}/learning_rate": chosen[-1].learning_rate,
        f"{objective.prefix}/skipped": float(sum(u.skipped for u in updates)),
    }


def build_optimizer(
    o: Optimizer, chunks: Sequence[DistributedDataParallel], steps: int, on_host: bool
) -> tuple[Any, OptimizerParamScheduler]:
    """Megatron's distributed AdamW with its schedule. `steps`: optimizer steps of the whole job, over which the learning rate decays after a linear
    warm-up; `on_host`: see build_adam.

    Step i of n warm-up steps uses i / n of the learning rate. Megatron uses (i - 1) / n, with which the first step has no effect; its scheduler gets
    parameters that describe the same line as ours.
    """
    optimizer = build_adam(o, chunks, on_host)
    rising = max(0, o.warmup_steps - 1)
    last = max(steps, rising + 1)
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=o.learning_rate / max(1, o.warmup_steps),
        max_lr=o.learning_rate,
        min_lr=o.min_learning_rate,
        lr_warmup_steps=rising,
        lr_decay_steps=last,
        lr_decay_style=o.decay,
        start_wd=o.weight_decay,
        end_wd=o.weight_decay,
        wd_incr_steps=last,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # after a resume the spec's numbers hold, not the checkpoint's; the count of steps is the checkpoint's
    )
    return optimizer, scheduler


def build_adam(o: Optimizer, chunks: Sequence[DistributedDataParallel], on_host: bool = False) -> Any:
    """Megatron's distributed AdamW, without a schedule. `on_host`: its steps are taken there, on float32 weights and moments that stay there
    (compat/host_adam.py).

    There moments may be in bfloat16: a step computes with them in float32, and rounds the new ones to the nearest.
    """
    model, moments = chunks[0].config, getattr(torch, o.moments_dtype)
    config = OptimizerConfig(
        optimizer="adam",
        lr=o.learning_rate,
        min_lr=o.min_learning_rate,
        weight_decay=o.weight_decay,
        adam_beta1=o.beta1,
        adam_beta2=o.beta2,
        adam_eps=o.epsilon,
        clip_grad=o.clip_grad,
        bf16=model.bf16,
        params_dtype=model.params_dtype,
        use_distributed_optimizer=True,
        overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
        optimizer_cpu_offload=on_host,
        use_precision_aware_optimizer=on_host,
        exp_avg_dtype=moments,
        exp_avg_sq_dtype=moments,
    )
    optimizer = get_megatron_optimizer(config, list(chunks))
    for part in optimizer.chained_optimizers if on_host else ():
        if isinstance(part.optimizer, HostAdam):
            part.optimizer.moments = moments
        allocate(part)
    return optimizer
