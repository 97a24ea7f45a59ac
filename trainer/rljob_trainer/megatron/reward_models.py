"""Reward models on the ranks: frozen value models, whose value at the last token of prompt and response is the reward."""

from collections.abc import Callable

from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import MegatronReward
from rljob_api.spec.roles import Offload
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.model import freeze
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.packing import pack
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.passes import Passes
from rljob_trainer.megatron.step import Step, gather
from rljob_trainer.megatron.value_model import ValueModel, values_of
from rljob_trainer.rewards.entries import entries_of


class RewardModels:
    """The entries of spec.rewards with `model`. Every method is collective."""

    def __init__(self, spec: RLJobSpec, parallel: ParallelState, heartbeat: Callable[[], None]) -> None:
        """Raises ConfigurationError for a directory that is no classifier with one label."""
        self._spec = spec
        self._models = {
            i: _RewardModel(spec, reward.model, f"spec.rewards[{i}].model.path", parallel, heartbeat)
            for i, reward in enumerate(spec.rewards)
            if reward.model
        }

    def add_to(self, step: Step) -> Step:
        """The step with rewards to which each entry's weighted score is added; the same step when there is no entry."""
        rewards = [s.reward for s in step.samples]
        for entry, model in self._models.items():
            judged = {
                i: reward.weight
                for i, s in enumerate(step.samples)
                for found, reward in entries_of(self._spec.rewards, s.data_source)
                if found == entry
            }
            for (i, weight), score in zip(judged.items(), model.scores(step, list(judged)), strict=True):
                rewards[i] += weight * score
        return step.with_rewards(rewards) if self._models else step

    def metrics(self, step: Step) -> dict[str, float]:
        """Of the rewards with the scores in them; nothing when there is no entry."""
        return {"reward/with_models": sum(s.reward for s in step.samples) / len(step.samples)} if self._models else {}


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
        self._offloader = Offloader(Offload(parameters=reward.offload), model.modules)
        self._passes = Passes(freeze(model.modules, model.config), model.config, heartbeat)
        self._budget, self._parallel = spec.train.tokens_per_micro_batch, parallel

    def scores(self, step: Step, members: list[int]) -> list[float]:
        """Of these samples of the step, in their order, on every rank."""
        if not members:
            return []
        micro_batches = pack(step.samples, members, self._budget, self._parallel, complete=True)
        with self._offloader.using("parameters"):
            parts = values_of(self._passes, micro_batches)
        values = gather(list(zip(micro_batches, parts, strict=False)), step.counts, self._parallel)
        return [float(values[i][-1]) for i in members]
