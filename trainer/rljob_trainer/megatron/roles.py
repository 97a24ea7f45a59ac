"""Models on gangs of their own: frozen ones (reference, reward models) and the critic, which learns. SPMD: every method is collective over the
ranks of the gang.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout, spec_of_gang
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.checkpoint.staging import Staging
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.megatron import checkpoint
from rljob_trainer.megatron.batching import Planner
from rljob_trainer.megatron.frozen import RewardModels, separate_reference
from rljob_trainer.megatron.network import TrainedNetwork
from rljob_trainer.megatron.optimizer import update_metrics
from rljob_trainer.megatron.provider import work_of
from rljob_trainer.megatron.step import ModelRanks, Step
from rljob_trainer.megatron.value_model import critic_model
from rljob_trainer.wire.batch import Array, Batch


class Measured(NamedTuple):
    """What a model has measured of a step."""

    tokens: Mapping[str, Mapping[int, Array]] = {}
    """[name] -> [row] -> [response tokens] float32, of this rank's rows."""
    scores: Array | None = None
    """[n] float64, the same on all ranks of the gang."""


StepMeasure = Callable[[Step], Measured]


def _of_tokens(step: Step, name: str) -> Measured:
    """A column of the step."""
    return Measured({name: {row: values.numpy() for row, values in step.by_row(step.own(name)).items()}})


class FrozenRole(ModelRanks):
    """A reference or reward model. It measures the batch of a whole step at a time."""

    def __init__(self, spec: RLJobSpec, role: str, objective: Objective, heartbeat: Callable[[], None]) -> None:
        """`spec`: of the job. `objective`: of the policy. Raises ConfigurationError for a model that is wrong or does not fit the layout."""
        self._spec, self._objective = spec_of_gang(spec, role), objective
        layout = Layout.of(spec, role)
        planner = Planner(self._spec, layout, objective.pairs, objective.scores, work_of(spec)).undivided
        super().__init__(layout, spec.lifecycle.stall_timeout_seconds, planner)
        self._measure = self._reference(heartbeat) if role == names.ROLE_REFERENCE else self._rewards(role, heartbeat)

    def measure(self, batch: Batch) -> Measured:
        """The model's output. `batch`: this rank's part, as `parts` says."""
        return self._measure(Step.of(batch, self._planner, self._parallel))

    def _reference(self, heartbeat: Callable[[], None]) -> StepMeasure:
        log_probs = separate_reference(self._spec, self._parallel, heartbeat)

        def measure(step: Step) -> Measured:
            step.keep("reference_log_probs", log_probs(list(step.micro_batches()), self._objective.temperature))
            return _of_tokens(step, "reference_log_probs")

        return measure

    def _rewards(self, role: str, heartbeat: Callable[[], None]) -> StepMeasure:
        models = RewardModels(self._spec, {role}, self._parallel, heartbeat)

        def measure(step: Step) -> Measured:
            return Measured(scores=np.sum([*models.scores(step)], axis=0))

        return measure


class CriticRole(ModelRanks):
    """The critic. For each step it measures the values of the batch, then learns from it."""

    def __init__(self, spec: RLJobSpec, objective: Objective, heartbeat: Callable[[], None]) -> None:
        """`spec`: of the job, with its steps. `objective`: of the policy. Raises ConfigurationError for a model that is wrong or does not fit."""
        critic, learnt = spec.critic, objective.critic
        assert critic and learnt, "a rule says that the job has one"
        self._spec, self._learnt = spec_of_gang(spec, names.ROLE_CRITIC), learnt
        layout = Layout.of(spec, names.ROLE_CRITIC)
        planner = Planner(self._spec, layout, objective.pairs, objective.scores, work_of(spec))
        super().__init__(layout, spec.lifecycle.stall_timeout_seconds, planner)
        self.layout, self.heartbeat = str(layout), heartbeat
        model = critic_model(self._spec, critic, self._parallel)
        steps = Amounts.of(spec).updates * spec.train.total_steps
        self._network = TrainedNetwork(model, self._spec, critic.optimizer, steps, Offload(), self._parallel, heartbeat)
        self._step: Step | None = None
        self._staging = Staging()

    def measure(self, batch: Batch) -> Measured:
        """The column `values`. `batch`: this rank's part."""
        if self._spec.saves_in_background(after=batch.step - 1):
            checkpoint.prepare(self._state(), self._staging)
        self._step = step = Step.of(batch, self._planner, self._parallel)
        step.keep("values", self._network.values(list(step.micro_batches())))
        return _of_tokens(step, "values")

    def learn(self, targets: Batch) -> dict[str, float]:
        """Learn from the batch that was measured last; returns the metrics, the same on all ranks.

        `targets`: of this rank's part, `returns` and perhaps `mask` as what was measured, and no trajectories.
        """
        step, self._step = self._step, None
        assert step, "a batch is measured before it is learnt from"
        for name, values in targets.measured.items():
            step.put(name, {row: torch.from_numpy(v) for row, v in values.items()})
        step.put_loss_weights(self._learnt)
        learn = self._network.learn if self._learnt.learns(step.batch.step) else self._network.evaluate_loss
        metrics = update_metrics(self._learnt, learn(step, self._learnt))
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def save(self, directory: Path, alongside: bool) -> Writing:
        """Start to write the critic's state, as it is now, into a new directory; see `checkpoint`."""
        return checkpoint.save(directory, self._state(), alongside, self._staging)

    def load(self, directory: Path) -> None:
        """Restore the critic from an engine's directory. It may have been saved in another layout, or on the trainer's ranks."""
        checkpoint.load(directory, self._state(), self.heartbeat)

    def _state(self) -> checkpoint.LiveState:
        return checkpoint.LiveState({names.ROLE_CRITIC: self._network.checkpointed()}, {}, self.layout)
