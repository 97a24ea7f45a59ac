"""The training engine: the policy, and those of reference, critic and reward models that share its ranks.

SPMD: every method is collective over all ranks of the process group.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.objective import Objective, Targets
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.checkpoint.staging import Staging
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.megatron import backend, checkpoint
from rljob_trainer.megatron.batching import Planner
from rljob_trainer.megatron.draft.training import draft_of
from rljob_trainer.megatron.frozen import LogProbPass, RewardModels, reference_of
from rljob_trainer.megatron.memory import Meter
from rljob_trainer.megatron.model import PolicyModel
from rljob_trainer.megatron.network import EvaluatedNetwork, TrainedModel, TrainedNetwork
from rljob_trainer.megatron.optimizer import NonFiniteError, update_metrics
from rljob_trainer.megatron.ownership import Ownership, within_homes
from rljob_trainer.megatron.packing import MASK, MicroBatch, micro_batch
from rljob_trainer.megatron.provider import MODEL, work_of
from rljob_trainer.megatron.step import ModelRanks, Step, gather
from rljob_trainer.megatron.value_model import ValueModel, critic_model
from rljob_trainer.wire.batch import Batch, Columns
from rljob_trainer.wire.parity import MismatchError
from rljob_trainer.wire.trajectory import Trajectory
from rljob_trainer.wire.weights.plan import GatherPhase

__all__ = ["Engine", "MismatchError", "NonFiniteError"]


class Engine(ModelRanks):
    """All models on the trainer's ranks. The default process group must exist, and `compat.install()` must have been called."""

    def __init__(self, spec: RLJobSpec, heartbeat: Callable[[], None], objective: Objective | None = None) -> None:
        """`objective`: of the policy; by default that of spec.algorithm. `heartbeat` is called whenever progress was made.

        Raises ConfigurationError for models that are unusable or do not fit the layout.
        """
        layout = Layout.of(spec, names.ROLE_TRAINER)
        self._spec, self.layout, self.heartbeat = spec, str(layout), heartbeat
        self.objective = objective or PolicyObjective(spec)
        planner = Planner(spec, layout, self.objective.pairs, self.objective.scores, work_of(spec))
        super().__init__(layout, spec.lifecycle.stall_timeout_seconds, planner)
        self._routed = spec.algorithm.rollout_correction.router_replay == "rollout"
        self._model = self._trained_model()
        self._reference = self._frozen_reference()
        self.draft = draft_of(spec, self._model.modules[0], self._parallel)
        """The draft that is trained with the policy; None: there is none."""
        self._policy = self._network_of_policy()
        self._critic = self._trained_critic()
        self._reward_models = RewardModels(spec, spec.shared, self._parallel, heartbeat)
        self.backend = backend.describe(self._model.config, self._policy.optimizer)
        self.memory = Meter()
        self._staging = Staging()

    def held_out_parts(self, columns: Columns) -> list[list[int]]:
        """Like `parts`, for a batch that `evaluate` gets."""
        return self._planner.undivided.parts(columns)

    def evaluate(self, batch: Batch) -> dict[str, float]:
        """The objective's metrics of a batch, under the names that they have in training, the same on all ranks. Nothing is learnt.

        `batch`: this rank's part, as `held_out_parts` says.
        """
        self.memory.enter("score")
        step = self._measured(batch, self._planner.undivided)
        for name, values in self.objective.advantages(step).columns.items():
            step.put(name, values)
        step.put_loss_weights(self.objective)
        metrics = update_metrics(self.objective, self._policy.evaluate_loss(step, self.objective))
        self.memory.enter("generate")
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def measure(self, batch: Batch) -> Step:
        """Measure what stays fixed during the step: scores of reward models, and what the objective needs, such as old log-probabilities.

        `batch`: the whole batch, or this rank's part of it.
        """
        return self._measured(batch, self._planner)

    def _measured(self, batch: Batch, planner: Planner) -> Step:
        step = Step.of(batch, planner, self._parallel)
        for scores in self._reward_models.scores(step):
            step.add_rewards(scores)
        micro_batches, temperature = list(step.micro_batches()), self.objective.temperature
        with self._policy.offloader.using("parameters"):
            if self._reference:
                step.keep("reference_log_probs", self._reference(micro_batches, temperature))
            if "old_log_probs" in self.objective.needs:
                routing = self._policy.routing
                with routing.replayed() if self._routed else routing.recorded():
                    step.keep("old_log_probs", self._policy.log_probs(micro_batches, temperature))
        if self._critic:
            with self._critic.offloader.using("parameters"):
                step.keep("values", self._critic.values(micro_batches))
        return step

    def update(self, step: Step, targets: Targets) -> dict[str, float]:
        """One optimizer step per epoch and mini-batch, for all of the critic's first and then the policy's, so that offloaded networks are swapped
        once.

        Returns the metrics, the same on all ranks. Metrics that are not finite are left out: all optimizer steps were skipped, or no token was in the
        loss.

        Raises:
            MismatchError: before the policy's optimizer step; see parity.RunLimit.
            NonFiniteError: before an optimizer step, unless `onNonFinite: skip`.
            ConfigurationError: after too many skipped steps in a row.
        """
        self.memory.enter("train")
        for name, values in targets.columns.items():
            step.put(name, values)
        columns = step.batch.columns
        metrics = dict(targets.metrics) | self._reward_metrics(step)
        metrics["train/tokens"] = float(columns.length[columns.response_length > 0].sum())
        for network, objective in self._learners():
            step.put_loss_weights(objective)
            learn = network.learn if objective.learns(step.batch.step) else network.evaluate_loss
            with self._policy.routing.replayed():
                updates = learn(step, objective)
            metrics |= update_metrics(objective, updates) | network.guess_metrics()
        if self.objective.learns(step.batch.step):
            self.objective.after(metrics, int(columns.answered.sum()))
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def log_probs(self, trajectories: Sequence[Trajectory]) -> list[torch.Tensor]:
        """Per trajectory the log-probabilities [response tokens] under the policy at temperature 1, on every rank. All ranks pass the same
        trajectories."""
        units = [[row] for row in range(len(trajectories))]
        plan = self._planner.plan_units(units, [len(t) - 1 for t in trajectories])
        micro_batches = [micro_batch(trajectories, micro, self._parallel) for micro in plan[self.data_rank]]
        for micro in micro_batches:  # an environment's tokens, too
            micro.put(MASK, [torch.ones(t.response_length) for t in trajectories])
        with self._policy.offloader.using("parameters"):
            measured = self._policy.log_probs(micro_batches, temperature=1.0)
        counts = [t.response_length for t in trajectories]
        return gather(list(zip(micro_batches, measured, strict=False)), counts, self._parallel)

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the policy's tensors under their Hugging Face names, unsharded, in its dtype. Every rank must exhaust the iterator."""
        yield from self._exported(self._model.export())

    def export_owned(self, own: Ownership | None = None) -> list[GatherPhase]:
        """The policy in parts: each tensor on one rank, in two phases. Every rank must exhaust all of them, in their order. `own`: this rank's part;
        None: that of an export of the first copy."""
        with self._policy.offloader.using("parameters"):
            phases = self._model.export_owned(own)
        return [phase._replace(tensors=self._exported(phase.tensors)) for phase in phases]

    def export_served(self, home: int | None = None) -> list[GatherPhase]:
        """What servers get: as `export_owned`, and the draft, which rank 0 sends. Every rank must exhaust all of them, in their order.

        `home`: the first rank of this one's pod, where servers are on its GPUs: each pod exports a whole policy from ranks of its own. Where a pod
        lacks a part of it, all ranks gather everything, and the first of each pod sends it. None: servers are in pods of their own.
        """
        own = None if home is None else within_homes(home, self._parallel.device)
        if home is not None and own is None:
            return [GatherPhase(self.export(), dist.get_rank() == home)]
        first, *further = self.export_owned(own)
        if self.draft and first.sends:
            sent = self.draft.sent(self._model.config.params_dtype)
            size = sum(tensor.nbytes for _, tensor in sent)
            first = GatherPhase(chain(first.tensors, sent), True, first.bytes + size)
        return [first, *further]

    def _exported(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        with self._policy.offloader.using("parameters"):
            for name, tensor in tensors:
                self.heartbeat()
                yield name, tensor

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See TrainedModel.export_adapters. Every rank must exhaust the iterator."""
        with self._policy.offloader.using("parameters"):
            yield from self._model.export_adapters()

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config.json of the exported policy. `config`: that of the model that the job started from."""
        return self._model.hugging_face_config(config)

    def release_memory(self) -> None:
        """Return cached memory to the device, before servers that share it wake up."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def prepare_save(self) -> None:
        """Begin to make host memory ready for the first save that is written while training continues."""
        checkpoint.prepare(self._state(), self._staging)

    def save(self, directory: Path, alongside: bool) -> Writing:
        """Start to write the state of training, as it is now, into a new directory that all ranks share; see checkpoint.save."""
        with self._all_on_device():
            return checkpoint.save(directory, self._state(), alongside, self._staging)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, in this or another layout. The reference remains the model that the job started from."""
        with self._all_on_device():
            self.objective.load_state(checkpoint.load(directory, self._state(), self.heartbeat))

    def _reward_metrics(self, step: Step) -> dict[str, float]:
        """Mean reward including the scores of reward models; empty when the job has none."""
        columns = step.batch.columns
        kept = columns.reward[columns.answered]
        scored = any(reward.model for reward in self._spec.rewards)
        return {"reward/with_models": float(kept.mean())} if scored else {}

    def _learners(self) -> list[tuple[TrainedNetwork, Objective]]:
        critic = self.objective.critic
        assert isinstance(self._policy, TrainedNetwork), "a job that only evaluates takes no step"
        return ([(self._critic, critic)] if self._critic and critic else []) + [(self._policy, self.objective)]

    def _trained_model(self) -> TrainedModel:
        """A language model, or a value model for objectives over scores."""
        if self.objective.scores:
            return ValueModel(self._spec, self._spec.model.path, MODEL, self._parallel)
        return PolicyModel(self._spec, self._parallel)

    def _frozen_reference(self) -> LogProbPass | None:
        """The reference, if the objective needs it and it is on these ranks. Must be made while the policy has its initial weights."""
        if "reference_log_probs" not in self.objective.needs or names.ROLE_REFERENCE not in self._spec.shared:
            return None
        return reference_of(self._spec, self._model, self._policy_log_probs, self._parallel, self.heartbeat)

    def _policy_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[torch.Tensor]:
        return self._policy.log_probs(micro_batches, temperature)

    def _network_of_policy(self) -> EvaluatedNetwork:
        """Of a job that trains a TrainedNetwork."""
        spec = self._spec
        if spec.evaluation.only:
            return EvaluatedNetwork(self._model, spec.trainer.offload, self._parallel, self.heartbeat, self.draft)
        learning = sum(self.objective.learns(step) for step in range(1, spec.train.total_steps + 1))
        optimizer, offload = spec.train.optimizer, spec.trainer.offload
        steps = Amounts.of(spec).updates * learning
        return TrainedNetwork(self._model, spec, optimizer, steps, offload, self._parallel, self.heartbeat, self.draft)

    def _trained_critic(self) -> TrainedNetwork | None:
        spec, critic = self._spec, self._spec.critic
        if critic is None or names.ROLE_CRITIC not in spec.shared:
            return None
        model = critic_model(spec, critic, self._parallel)
        steps = Amounts.of(spec).updates * spec.train.total_steps
        return TrainedNetwork(model, spec, critic.optimizer, steps, critic.offload, self._parallel, self.heartbeat)

    def _state(self) -> checkpoint.LiveState:
        networks = {"policy": self._policy} | ({"critic": self._critic} if self._critic else {})
        parts = {name: network.checkpointed() for name, network in networks.items()}
        return checkpoint.LiveState(parts, self.objective.state(), self.layout)

    def _all_on_device(self) -> ExitStack:
        """A context in which parameters and optimizer state of all trained networks are on the device."""
        stack = ExitStack()
        for network in filter(None, (self._policy, self._critic)):
            stack.enter_context(network.offloader.using("parameters", "optimizer"))
        return stack
