"""Roles on ranks of their own: frozen models, and the critic, which learns. SPMD: every method is collective over its gang."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload
from rljob_trainer.arrays import Array, split
from rljob_trainer.batch import SCORES, Batch, Columns
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.megatron import checkpoint, parallel_state
from rljob_trainer.megatron.batching import plan_step, undivided
from rljob_trainer.megatron.frozen import RewardModels, separate_reference
from rljob_trainer.megatron.network import TrainedNetwork
from rljob_trainer.megatron.optimizer import update_metrics
from rljob_trainer.megatron.step import Step
from rljob_trainer.megatron.value_model import critic_model
from rljob_trainer.objectives.objective import Objective

Say = Callable[[Step], dict[str, Array]]


class FrozenRole:
    """What measures batches, whole steps at a time."""

    def __init__(self, spec: RLJobSpec, role: str, objective: Objective, heartbeat: Callable[[], None]) -> None:
        """`spec`: of the job. `objective`: of the policy. Raises ConfigurationError for a model that is wrong or does not fit the layout."""
        self._spec, self._objective = undivided(spec.of_gang(role)), objective
        device, timeout = parallel_state.current_device(), spec.lifecycle.stall_timeout_seconds
        self._parallel = parallel_state.initialize(Layout.of(spec, role), device, timeout)
        self._say = self._reference(heartbeat) if role == names.ROLE_REFERENCE else self._rewards(role, heartbeat)

    @property
    def data_rank(self) -> int:
        """This rank's data-parallel copy of the model."""
        return self._parallel.data_rank

    def parts(self, columns: Columns) -> list[list[int]]:
        """[data-parallel rank] -> rows of the step's trajectories that it needs, ascending."""
        objective, layout = self._objective, self._parallel.layout
        plan = plan_step(columns, self._spec, layout, objective.pairs, objective.scores)
        return [plan.rows(rank) for rank in range(layout.data)]

    def measure(self, batch: Batch) -> dict[str, Array]:
        """What the role says of the whole batch, of which this rank has its part; see buffer.measured. The same on all ranks."""
        return self._say(Step.of(batch, self._spec, self._parallel, self._objective))

    def _reference(self, heartbeat: Callable[[], None]) -> Say:
        log_probs = separate_reference(self._spec, self._parallel, heartbeat)

        def say(step: Step) -> dict[str, Array]:
            step.keep("reference_log_probs", log_probs(list(step.micro_batches()), self._objective.temperature))
            return {"reference_log_probs": torch.cat(step.gather("reference_log_probs")).numpy()}

        return say

    def _rewards(self, role: str, heartbeat: Callable[[], None]) -> Say:
        models = RewardModels(self._spec, {role}, self._parallel, heartbeat)
        return lambda step: {SCORES: np.sum([*models.scores(step)], axis=0)}


class CriticRole:
    """What values batches, and learns from each before it values the next."""

    def __init__(self, spec: RLJobSpec, objective: Objective, heartbeat: Callable[[], None]) -> None:
        """`spec`: of the job, with its steps. `objective`: of the policy. Raises ConfigurationError for a model that is wrong or does not fit."""
        critic, learnt = spec.critic, objective.critic
        assert critic and learnt, "a rule says that the job has one"
        self._spec, self._objective, self._learnt = spec.of_gang(names.ROLE_CRITIC), objective, learnt
        layout = Layout.of(spec, names.ROLE_CRITIC)
        device, timeout = parallel_state.current_device(), spec.lifecycle.stall_timeout_seconds
        self._parallel = parallel_state.initialize(layout, device, timeout)
        self.layout, self.heartbeat = str(layout), heartbeat
        model = critic_model(self._spec, critic, self._parallel)
        steps = Amounts.of(spec).updates * spec.train.total_steps
        self._network = TrainedNetwork(model, self._spec, critic.optimizer, steps, Offload(), self._parallel, heartbeat)
        self._step: Step | None = None

    @property
    def data_rank(self) -> int:
        """This rank's data-parallel copy of the model."""
        return self._parallel.data_rank

    def parts(self, columns: Columns) -> list[list[int]]:
        """[data-parallel rank] -> rows of the step's trajectories that it needs, ascending."""
        layout = self._parallel.layout
        plan = plan_step(columns, self._spec, layout, self._objective.pairs, self._objective.scores)
        return [plan.rows(rank) for rank in range(layout.data)]

    def measure(self, batch: Batch) -> dict[str, Array]:
        """The values of the whole batch, of which this rank has its part: [response tokens] float32. The same on all ranks."""
        self._step = step = Step.of(batch, self._spec, self._parallel, self._objective)
        step.keep("values", self._network.values(list(step.micro_batches())))
        return {"values": torch.cat(step.gather("values")).numpy()}

    def learn(self, columns: Mapping[str, Array]) -> dict[str, float]:
        """From the batch that was measured last, with these columns of it, [response tokens] each. The metrics, the same on all ranks."""
        step, self._step = self._step, None
        assert step, "a batch is measured before it is learnt from"
        for name, values in columns.items():
            step.put(name, [torch.from_numpy(v) for v in split(values, step.counts)])
        step.weigh(self._learnt)
        learn = self._network.learn if self._learnt.learns(step.batch.step) else self._network.evaluate_loss
        metrics = update_metrics(self._learnt, learn(step, self._learnt))
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def save(self, directory: Path, reshardable: bool) -> Writing:
        """Start to write everything that it continues from, as it is now, into a new directory; see `checkpoint`."""
        return checkpoint.save(directory, self._state(), reshardable)

    def load(self, directory: Path) -> None:
        """Continue from what was saved, in whatever layout, on ranks of its own or on the trainer's. `directory`: of the whole engine."""
        checkpoint.load(directory, self._state(), self.heartbeat)

    def _state(self) -> checkpoint.State:
        return checkpoint.State({names.ROLE_CRITIC: self._network.checkpointed()}, {}, self.layout)
