"""Reward models on the ranks: frozen value models, whose value at the last token of prompt and response is the reward."""

from collections.abc import Callable, Collection, Iterator

import numpy as np

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import MegatronReward
from rljob_api.spec.roles import Offload
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.network import Network
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.packing import micro_batch
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.step import Step, gather
from rljob_trainer.megatron.value_model import ValueModel
from rljob_trainer.rewards.entries import entries_of


class RewardModels:
    """Entries of spec.rewards with `model`. Every method is collective."""

    def __init__(
        self, spec: RLJobSpec, roles: Collection[str], parallel: ParallelState, heartbeat: Callable[[], None]
    ) -> None:
        """Those of these roles. Raises ConfigurationError for a directory that is no classifier with one label."""
        self._spec = spec
        self._models = {
            i: _RewardModel(spec, reward.model, f"spec.rewards[{i}].model.path", parallel, heartbeat)
            for i, reward in enumerate(spec.rewards)
            if reward.model and names.reward_role(i) in roles
        }

    def scores(self, step: Step) -> Iterator[np.ndarray]:
        """Of each entry [n], weighted; 0 for trajectories that it does not apply to."""
        for entry, model in self._models.items():
            weights = self._weights(entry, step.batch.columns.data_source.tolist())
            scores = model.scores(step, {row for row, weight in enumerate(weights) if weight})
            yield np.array(weights) * scores

    def _weights(self, entry: int, data_sources: list[str]) -> list[float]:
        """Of the entry, by row; 0 where it does not apply."""
        by_source = {
            source: next((r.weight for i, r in entries_of(self._spec.rewards, source) if i == entry), 0.0)
            for source in set(data_sources)
        }
        return [by_source[source] for source in data_sources]


class _RewardModel:
    def __init__(
        self,
        spec: RLJobSpec,
        reward: MegatronReward,
        field: str,
        parallel: ParallelState,
        heartbeat: Callable[[], None],
    ) -> None:
        model = ValueModel(spec, reward.path, field, parallel)
        if not model.has_head:
            fix = "name a sequence classifier with one label"
            raise ConfigurationError(field, reward.path, "has no classifier's head (score.weight)", fix)
        self._network = Network(model, parallel, heartbeat)
        self._offloader = Offloader(Offload(parameters=reward.offload and not reward.processes_per_node), model.modules)

    def scores(self, step: Step, chosen: set[int]) -> np.ndarray:
        """[n], of these rows, 0 elsewhere; on every rank. In the cut of the training passes, with each trajectory's last token."""
        if not chosen:
            return np.zeros(len(step.counts))
        micro_batches = [
            micro_batch(step.batch.trajectories, [i for i in m.row.rows if i in chosen], step.parallel, complete=True)
            for m in step.micro_batches()
        ]
        with self._offloader.using("parameters"):
            parts = self._network.values(micro_batches)
        values = gather(list(zip(micro_batches, parts, strict=False)), step.counts, step.parallel)
        return np.array([float(v[-1]) if i in chosen and len(v) else 0.0 for i, v in enumerate(values)])
