"""The critic: what the policy is expected to earn from each token on. Collective like the engine, in the policy's layout and micro-batches."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import CriticSpec
from rljob_trainer.megatron import checkpoint
from rljob_trainer.megatron.metrics import MetricAccumulator, Update, of_steps, sums_of
from rljob_trainer.megatron.model import settle, wrap
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.optimizer import Learner, build_optimizer
from rljob_trainer.megatron.packing import MicroBatch, MiniBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.passes import Passes
from rljob_trainer.megatron.step import Step
from rljob_trainer.megatron.value_model import ValueModel, values_of
from rljob_trainer.objectives.advantages import Advantages, Episodes
from rljob_trainer.objectives.losses import value_loss


class Critic:
    """A value model that learns."""

    def __init__(
        self, spec: RLJobSpec, critic: CriticSpec, parallel: ParallelState, heartbeat: Callable[[], None]
    ) -> None:
        """Raises ConfigurationError for what is wrong with its directory."""
        self._spec, self._critic, self._parallel = spec, critic, parallel
        model = ValueModel(spec, critic.path or spec.model.path, "spec.critic.path", parallel)
        self._modules, self._chunks = model.modules, wrap(model.modules, model.config, spec)
        optimizer, scheduler = build_optimizer(critic.optimizer, self._chunks, Amounts.of(spec).optimizer_steps)
        self.offloader = Offloader(critic.offload, self._modules, self._chunks, optimizer)
        skips = spec.train.on_non_finite == "skip"
        self._learner = Learner(self._chunks, optimizer, scheduler, self.offloader, skips)
        self._passes = Passes(self._chunks, model.config, heartbeat)

    def values(self, step: Step) -> list[torch.Tensor]:
        """Per micro-batch the value [t] before each token is chosen; empty on all but the last stage."""
        with self.offloader.using("parameters"):
            return values_of(self._passes, list(step.micro_batches()))

    def learn(self, step: Step) -> list[Update]:
        """An optimizer step per epoch and mini-batch, from the columns `values` and `returns`."""
        with self.offloader.using("parameters", "gradients"):
            updates = [
                self._learner.step(partial(self._gradients, batch))
                for _ in range(self._spec.train.epochs_per_step)
                for batch in step.batches
            ]
            settle(self._chunks)
        return updates

    def network(self) -> checkpoint.Network:
        """What a checkpoint needs of it; inside `offloader.using("parameters", "optimizer")`."""
        return checkpoint.Network(self._modules, self._learner.optimizer, self._learner.scheduler, self.offloader)

    def _gradients(self, batch: MiniBatch) -> MetricAccumulator:
        parts = self._passes.backward(batch, partial(self._loss, denominator=batch.response_tokens))
        return sum(parts, MetricAccumulator.zero(("clipped",), self._parallel.device)).over_world(
            counts=self._parallel.reports_metrics
        )

    def _loss(
        self, micro: MicroBatch, output: torch.Tensor, denominator: int
    ) -> tuple[torch.Tensor, MetricAccumulator]:
        """The mean over all response tokens of the mini-batch, whatever the policy's aggregation."""
        columns = micro.columns
        terms = value_loss(output.flatten(), columns["values"], columns["returns"], self._critic.clip)
        loss = (columns["mask"] * terms.loss).sum() / denominator
        return loss, MetricAccumulator.of(loss, columns["mask"], {"clipped": terms.clipped * columns["mask"]})


def critic_metrics(updates: Sequence[Update], advantages: Advantages, episodes: Episodes) -> dict[str, float]:
    """Of the optimizer steps; the explained variance is that of the values before them."""
    return of_steps("critic", updates) | {
        "critic/clip_fraction": sums_of(updates).mean("clipped"),
        "critic/explained_variance": explained_variance(advantages, episodes),
    }


def explained_variance(advantages: Advantages, episodes: Episodes) -> float:
    """1 - Var(returns - values) / Var(returns) over the response tokens of the step: 1 is a perfect critic, 0 one that knows nothing."""
    assert advantages.returns is not None and episodes.values is not None, "gae has both"
    chosen = episodes.mask > 0
    returns, values = advantages.returns[chosen], episodes.values[chosen]
    spread = float(returns.var(correction=0))
    return 1.0 - float((returns - values).var(correction=0)) / spread if spread else 0.0
