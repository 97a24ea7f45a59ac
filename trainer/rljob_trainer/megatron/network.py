"""A model with its forward and backward passes over micro-batches, through megatron's pipeline schedules (Network), one whose loss is measured and
whose weights a checkpoint has (EvaluatedNetwork), and one that is trained, with optimizer and schedule (TrainedNetwork).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import MegatronModule

from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload
from rljob_api.spec.train import Optimizer
from rljob_trainer.algorithm.objective import MetricAccumulator, Objective
from rljob_trainer.algorithm.tokens import Predictions
from rljob_trainer.megatron import checkpoint
from rljob_trainer.megatron.compat import pipeline_shapes
from rljob_trainer.megatron.draft.training import DraftTraining
from rljob_trainer.megatron.exact import functions
from rljob_trainer.megatron.logprob import predictions
from rljob_trainer.megatron.lora import Adapters, Base
from rljob_trainer.megatron.memory import Offloader
from rljob_trainer.megatron.model import finish_updates, freeze, wrap
from rljob_trainer.megatron.multi_token import MultiTokenLoss
from rljob_trainer.megatron.optimizer import Learner, Update, build_optimizer, checked
from rljob_trainer.megatron.output_layer import logits_at, takes_some_tokens
from rljob_trainer.megatron.ownership import Ownership
from rljob_trainer.megatron.packing import MicroBatch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.routing import Routing
from rljob_trainer.megatron.step import LOGGED, MiniBatch, Step
from rljob_trainer.wire.weights.plan import GatherPhase

OutputFunction = Callable[[MicroBatch, torch.Tensor], Any]
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
    learnt_only: bool
    """The output is logits, of the tokens MicroBatch.learnt only."""

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[MicroBatch], measure: OutputFunction) -> list[Any]:
        """The result of `measure` for each micro-batch; an empty list on all but the last stage."""
        return self._run(micro_batches, measure, training=False)

    def backward(self, batch: MiniBatch, loss: OutputFunction) -> list[Any]:
        """Accumulate gradients. `loss` returns a micro-batch's part of the loss, and metrics, which are returned as by `forward`."""
        # A router's auxiliary loss, if transformerConfig asks for one, is a sum over tokens (router.py, attach_and_log_load_balancing_loss): scaled
        # to a mean here, as is that of multi-token prediction. A tensor on the device, since every micro-batch reads it, and a copy from the host
        # would wait for the device each time.
        scale = torch.full((), 1.0 / batch.read_tokens, device=batch.micro_batches[0].tokens.device)

        def scale_of_a_token() -> torch.Tensor:
            return scale

        self.config.moe_grad_scale_func = self.config.mtp_grad_scale_func = scale_of_a_token
        return self._run(batch.micro_batches, partial(_for_schedule, loss), training=True)

    def _run(self, micro_batches: Sequence[MicroBatch], measure: OutputFunction, training: bool) -> list[Any]:
        part = self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1
        lengths = [micro.tokens.shape[1] // part for micro in micro_batches]
        return get_forward_backward_func()(
            forward_step_func=partial(self._forward, measure=measure, training=training),
            data_iterator=[iter(micro_batches) for _ in self.chunks],
            model=list(self.chunks),
            num_microbatches=len(micro_batches),
            seq_length=max(micro.tokens.shape[1] for micro in micro_batches),
            micro_batch_size=1,
            forward_only=not training,
            collect_non_loss_data=not training,
            **pipeline_shapes.arguments(self.config, lengths, len(self.chunks)),
        )

    def _forward(
        self, data: Any, model: torch.nn.Module, measure: OutputFunction, training: bool
    ) -> tuple[torch.Tensor, Callable[..., Any]]:
        micro = next(data)
        self.heartbeat()
        kwargs: dict[str, Any] = {"fp32_output": False} if self.config.bf16 else {}
        if training and self.config.mtp_num_layers:  # see compat/core_layers.py
            kwargs |= {"loss_mask": micro.after_next[None]}
        if self.learnt_only:
            kwargs |= {"output_processor": logits_at(micro.learnt)}
        packed = copy(micro.packed)  # layers keep there what others of the same pass take (sparse_attention.py)
        with self.routing.of(model, micro):
            output = model(micro.tokens, micro.positions, None, packed_seq_params=packed, **micro.images, **kwargs)

        def measured(output: torch.Tensor, non_loss_data: bool = False) -> Any:
            return measure(micro, output)

        return output, measured


def _for_schedule(
    loss: OutputFunction, micro: MicroBatch, output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """The result in the form that megatron's schedule expects: loss, number of tokens (unused), metrics."""
    value, measured = loss(micro, output)
    return value, torch.zeros((), dtype=torch.int, device=value.device), measured


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Implements algorithm.objective.Output, for a language model with `vocabulary` tokens, or for a value model (None)."""

    micro: MicroBatch
    raw: torch.Tensor
    """[1, u, local vocabulary], or values [t, 1, 1]"""
    rows: torch.Tensor | None
    """[u], the tokens whose logits these are; None: all."""
    vocabulary: int | None
    parallel: ParallelState
    exact: ModuleType | None = None
    """The kernels of vLLM with which the model computes; None: it has its own."""

    def predictions(self, temperature: float, candidates: torch.Tensor | None = None) -> Predictions:
        assert self.vocabulary is not None, "a value model has no log-probabilities"
        group = self.parallel.tensor_group
        logits = self.raw.squeeze(0)  # not raw[0]: its backward pass would copy the gradient into a tensor of zeros
        rows, targets = self.rows, self.micro.targets
        if rows is not None:
            targets, candidates = targets[rows], None if candidates is None else candidates[rows]
        taken = predictions(logits, targets, temperature, self.vocabulary, group, candidates)
        if self.exact:
            exact = functions.log_probs(self.exact, taken.log_probs, logits, targets, temperature)
            taken = taken._replace(log_probs=exact)
        if rows is None:
            return taken
        count = len(self.micro.targets)
        return Predictions(*(x.new_zeros(count, *x.shape[1:]).index_copy(0, rows, x) for x in taken))

    def values(self) -> torch.Tensor:
        assert self.vocabulary is None, "a language model has no values"
        return self.raw.flatten()


class LoadedModel(Protocol):
    """A sharded megatron model: model.PolicyModel, value_model.ValueModel."""

    config: Any
    modules: list[MegatronModule]
    """The model chunks of this rank's pipeline stage: one, or as many as `virtualPipeline` says."""
    vocabulary: int | None
    """Vocabulary size of a language model; None: a value model."""
    adapters: Adapters | None
    """The adapters that are trained; None: all parameters are."""
    exact: ModuleType | None
    """The kernels of vLLM with which it computes; None: its own."""
    multi_token: MultiTokenLoss | None
    """The training of the layer that guesses the token after the next; None: it is not part of the model."""


class TrainedModel(LoadedModel, Protocol):
    """A model that is trained and exported."""

    @property
    def base(self) -> Base | None:
        """Base model of its adapters; None: it has none. The first access is collective, and needs the parameters on the device."""
        ...

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields Hugging Face names and unsharded tensors in the model's dtype, on every rank. Collective: every rank must exhaust the iterator."""
        ...

    def export_owned(self, own: Ownership | None = None) -> list[GatherPhase]:
        """The same tensors in parts, each on one rank; see plan.GatherPhase. The first call is collective over all ranks. `own`: see
        Exporter.owned."""
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
        chunks: Sequence[torch.nn.Module] = (),
    ) -> None:
        """`chunks`: the wrapped model chunks of one that learns; none: they are frozen."""
        self._vocabulary, self.parallel, self._exact = model.vocabulary, parallel, model.exact
        self.modules = model.modules
        pieces = chunks or freeze(model.modules, model.config)
        self.routing = Routing(pieces)
        self._learnt_only = model.vocabulary is not None and takes_some_tokens(model.config)
        self.passes = Passes(pieces, model.config, heartbeat, self.routing, self._learnt_only)

    def output(self, micro: MicroBatch, raw: torch.Tensor) -> ModelOutput:
        rows = micro.learnt if self._learnt_only else None
        return ModelOutput(micro, raw, rows, self._vocabulary, self.parallel, self._exact)

    def log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[torch.Tensor]:
        """Per micro-batch the log-probabilities [t] of its targets, 0 of tokens without `mask`; an empty list on all but the last pipeline stage."""
        return self.passes.forward(micro_batches, lambda m, raw: self.output(m, raw).predictions(temperature).log_probs)

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Per micro-batch the values [t] of its tokens; an empty list on all but the last pipeline stage."""
        return self.passes.forward(micro_batches, lambda m, raw: self.output(m, raw).values())


class EvaluatedNetwork(Network):
    """A model that can be offloaded, and whose loss is measured. Without `chunks` and `optimizer` it learns nothing."""

    def __init__(
        self,
        model: TrainedModel,
        offload: Offload,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
        draft: DraftTraining | None = None,
        chunks: Sequence[DistributedDataParallel] = (),
        optimizer: Any = None,
    ) -> None:
        """`draft`: is served with it; `chunks`, `optimizer`: of one that learns."""
        super().__init__(model, parallel, heartbeat, chunks)
        self._model, self._draft, self.optimizer = model, draft, optimizer
        held = offload if chunks else Offload(parameters=offload.parameters)
        self.offloader = Offloader(held, model.modules, chunks, optimizer)

    def evaluate_loss(self, step: Step, objective: Objective) -> list[Update]:
        """The same sums as TrainedNetwork.learn, from forward passes only."""

        def measure(micro: MicroBatch, raw: torch.Tensor) -> MetricAccumulator:
            return self._loss(micro, raw, objective)[1]

        with self.offloader.using("parameters"):
            parts = (self.passes.forward(batch.micro_batches, measure) for batch in step.batches)
            sums = [checked(self._over_world(p, objective), partial(objective.check, update=0)) for p in parts]
        return [Update(s, grad_norm=0.0, learning_rate=0.0, skipped=False) for s in sums]

    def checkpointed(self) -> checkpoint.CheckpointedNetwork:
        """What a checkpoint has of the network. Must be called inside `offloader.using("parameters", "optimizer")`."""
        return checkpoint.CheckpointedNetwork(
            self.modules, self._model.base, self.optimizer, None, self.offloader, self._draft
        )

    def _loss(
        self, micro: MicroBatch, raw: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, MetricAccumulator]:
        token_loss = objective.loss(micro.columns, micro.sequences, self.output(micro, raw))
        if token_loss.old_log_probs is not None:
            micro.columns.setdefault(LOGGED, token_loss.old_log_probs)
        loss = (micro.columns[f"{objective.prefix}/loss_weights"] * token_loss.loss).sum()
        return loss, MetricAccumulator.of(loss, token_loss.mask, token_loss.token_metrics)

    def _over_world(self, parts: Sequence[MetricAccumulator], objective: Objective) -> MetricAccumulator:
        zero = MetricAccumulator.zero(objective.token_metrics, self.parallel.device)
        return sum(parts, zero).over_world(counts=self.parallel.reports_metrics)


class TrainedNetwork(EvaluatedNetwork):
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
        draft: DraftTraining | None = None,
    ) -> None:
        """`steps`: optimizer steps of the whole job, over which the learning rate decays; `draft`: is trained in the same passes."""
        chunks = wrap(model.modules, model.config, spec)
        adam, self.scheduler = build_optimizer(optimizer, chunks, steps, offload.update)
        super().__init__(model, offload, parallel, heartbeat, draft, chunks, adam)
        self.chunks, skips = chunks, spec.train.on_non_finite == "skip"
        self._learner = Learner(chunks, adam, self.scheduler, self.offloader, optimizer.clip_grad, skips, draft)
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

    def guess_metrics(self) -> dict[str, float]:
        """Of the layer that guesses the token after the next, and of the draft, over the updates since the last call. Collective."""
        layer, draft = self._model.multi_token, self._draft
        of_layer = layer.metrics(counts=self.parallel.reports_metrics) if layer else {}
        return of_layer | (draft.metrics() if draft else {})

    def checkpointed(self) -> checkpoint.CheckpointedNetwork:
        return replace(super().checkpointed(), scheduler=self.scheduler)

    def _gradients(self, batch: MiniBatch, objective: Objective) -> MetricAccumulator:
        with self._draft.listening() if self._draft else nullcontext():
            parts = self.passes.backward(batch, partial(self._learnt, objective=objective))
        return self._over_world(parts, objective)

    def _learnt(
        self, micro: MicroBatch, raw: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, MetricAccumulator]:
        """The loss, after the draft has read the logits, which the loss may overwrite."""
        if self._draft:
            self._draft.learn(micro, raw[0] if self._learnt_only else raw[0][micro.learnt])
        return self._loss(micro, raw, objective)
