"""One optimizer step, and what happens when it cannot be taken."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from rljob_trainer.megatron.offload import Residence
from rljob_trainer.megatron.sums import LOSS, Sums


class NonFiniteError(RuntimeError):
    """The loss or the gradient is not a number. The parameters are as they were before the optimizer step."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer step did."""

    sums: Sums
    norm: float
    """Of the gradient, before clipping."""
    rate: float
    """Learning rate."""
    skipped: bool


@dataclass(frozen=True, slots=True)
class Learner:
    """A model's buffers, optimizer and schedule."""

    chunks: Sequence[DistributedDataParallel]
    optimizer: Any
    scheduler: OptimizerParamScheduler
    residence: Residence
    skips: bool
    """Leave out an optimizer step whose loss or gradient is not finite, instead of failing."""

    def step(self, gradients: Callable[[], Sums]) -> Update:
        """One optimizer step. `gradients` fills the buffers and returns the sums over the world. Collective; the same result on all ranks.
        Parameters and gradients must be on the device.

        Raises NonFiniteError, with parameters and moments as they were.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        sums, rate = gradients(), self.optimizer.param_groups[0]["lr"]
        loss, norm = sums[LOSS], math.nan
        with self.residence.using("optimizer"):
            if math.isfinite(loss):
                norm = self._norm()
            if math.isfinite(norm):
                self.optimizer.step()
                self.scheduler.step(1)
        if not math.isfinite(norm) and not self.skips:
            what = f"the norm of the gradient is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
            raise NonFiniteError(what)
        return Update(sums, norm, rate, skipped=not math.isfinite(norm))

    def _norm(self) -> float:
        """Known before parameters change; the optimizer measures it again to clip."""
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm())
