"""A model with its forward passes (Network), and one that is trained, with optimizer, schedule and offloading (TrainedNetwork)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.transformer.module import MegatronModule

from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload
from rljob_api.spec.train import Optimizer
from rljob_trainer.algorithm.metrics import MetricAccumulator
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.megatron import checkpoint
from rljob_trainer.megatron.lora import Adapters
from rljob_trainer.megatron.lora_base import Base
from rljob_trainer.megatron.model import finish_updates, freeze, wrap
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.optimizer import Learner, Update, build_optimizer, checked
from rljob_trainer.megatron.packing import MicroBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.passes import ModelOutput, Passes
from rljob_trainer.megatron.routing import Routing
from rljob_trainer.megatron.step import MiniBatch, Step


class LoadedModel(Protocol):
    """A sharded megatron model: model.PolicyModel, value_model.ValueModel."""

    config: Any
    modules: list[MegatronModule]
    """The model chunks of this rank's pipeline stage: one, or as many as `virtualPipeline` says."""
    vocabulary: int | None
    """Vocabulary size of a language model; None: a value model."""
    adapters: Adapters | None
    """The adapters that are trained; None: all parameters are."""


class TrainedModel(LoadedModel, Protocol):
    """A model that is trained and exported."""

    @property
    def base(self) -> Base | None:
        """Base model of its adapters; None: it has none. The first access is collective, and needs the parameters on the device."""
        ...

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields Hugging Face names and unsharded tensors in the model's dtype, on every rank. Collective: every rank must exhaust the iterator."""
        ...

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Like `export`, for the adapters, under the names of the peft library without their prefix."""
        ...

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config.json of the exported model. `config`: that of the directory from which it was loaded."""
        ...


class Network:
    """A model with forward passes. Every method is collective over the ranks of the model."""

    def __init__(
        self,
        model: LoadedModel,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
        chunks: Sequence[torch.nn.Module] | None = None,
    ) -> None:
        """`chunks`: the wrapped model chunks; by default they are frozen."""
        self._vocabulary, self.parallel = model.vocabulary, parallel
        self.modules = model.modules
        pieces = chunks or freeze(model.modules, model.config)
        self.routing = Routing(pieces)
        self.passes = Passes(pieces, model.config, heartbeat, self.routing)

    def output(self, micro: MicroBatch, raw: torch.Tensor) -> ModelOutput:
        return ModelOutput(micro, raw, self._vocabulary, self.parallel)

    def log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[torch.Tensor]:
        """Per micro-batch the log-probabilities [t] of its targets; an empty list on all but the last pipeline stage."""
        return self.passes.forward(micro_batches, lambda m, raw: self.output(m, raw).predictions(temperature).log_probs)

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Per micro-batch the values [t] of its tokens; an empty list on all but the last pipeline stage."""
        return self.passes.forward(micro_batches, lambda m, raw: self.output(m, raw).values())


class TrainedNetwork(Network):
    """A model with an optimizer, trained on an objective."""

    def __init__(
        self,
        model: TrainedModel,
        spec: RLJobSpec,
        optimizer: Optimizer,
        steps: int,
        offload: Offload,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
    ) -> None:
        """`steps`: optimizer steps of the whole job, over which the learning rate decays."""
        chunks = wrap(model.modules, model.config, spec)
        super().__init__(model, parallel, heartbeat, chunks)
        self._model, self.chunks = model, chunks
        self.optimizer, self.scheduler = build_optimizer(optimizer, chunks, steps)
        self.offloader = Offloader(offload, model.modules, chunks, self.optimizer)
        skips = spec.train.on_non_finite == "skip"
        self._learner = Learner(chunks, self.optimizer, self.scheduler, self.offloader, skips)
        self._epochs = spec.train.epochs_per_step

    def learn(self, step: Step, objective: Objective) -> list[Update]:
        """Take one optimizer step per epoch and mini-batch.

        Raises what `objective.check` raises, and NonFiniteError, both before the optimizer step.
        """
        updates: list[Update] = []
        with self.offloader.using("parameters", "gradients"):
            for _ in range(self._epochs):
                for batch in step.batches:
                    check = partial(objective.check, update=len(updates))
                    updates.append(self._learner.step(partial(self._gradients, batch, objective), check))
            finish_updates(self.chunks)
        return updates

    def evaluate_loss(self, step: Step, objective: Objective) -> list[Update]:
        """The same sums as `learn`, from forward passes only."""
        measure = lambda micro, raw: self._loss(micro, raw, objective)[1]  # noqa: E731
        with self.offloader.using("parameters"):
            parts = (self.passes.forward(batch.micro_batches, measure) for batch in step.batches)
            sums = [checked(self._over_world(p, objective), partial(objective.check, update=0)) for p in parts]
        return [Update(s, grad_norm=0.0, learning_rate=0.0, skipped=False) for s in sums]

    def checkpointed(self) -> checkpoint.CheckpointedNetwork:
        """What a checkpoint saves of the network. Must be called inside `offloader.using("parameters", "optimizer")`."""
        return checkpoint.CheckpointedNetwork(
            self.modules, self._model.base, self.optimizer, self.scheduler, self.offloader
        )

    def _gradients(self, batch: MiniBatch, objective: Objective) -> MetricAccumulator:
        return self._over_world(self.passes.backward(batch, partial(self._loss, objective=objective)), objective)

    def _loss(
        self, micro: MicroBatch, raw: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, MetricAccumulator]:
        found = objective.loss(micro.columns, micro.sequences, self.output(micro, raw))
        loss = (micro.columns[f"{objective.prefix}/loss_weights"] * found.loss).sum()
        return loss, MetricAccumulator.of(loss, found.mask, found.token_metrics)

    def _over_world(self, parts: Sequence[MetricAccumulator], objective: Objective) -> MetricAccumulator:
        zero = MetricAccumulator.zero(objective.token_metrics, self.parallel.device)
        return sum(parts, zero).over_world(counts=self.parallel.reports_metrics)
