"""The reference, or a reward model, on ranks of its own. SPMD: every method is collective over its gang."""

from collections.abc import Callable

import numpy as np
import torch

from rljob_api import names
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.arrays import Array
from rljob_trainer.batch import SCORES, Batch, Columns
from rljob_trainer.megatron import parallel_state
from rljob_trainer.megatron.batching import plan_step, undivided
from rljob_trainer.megatron.reference import separate_reference
from rljob_trainer.megatron.reward_models import RewardModels
from rljob_trainer.megatron.step import Step
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
