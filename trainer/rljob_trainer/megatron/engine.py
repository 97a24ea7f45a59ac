"""The engine of the trainer: policy, critic and reward models. SPMD: every method is collective over all ranks of the process group."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Batch, Columns
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.megatron import checkpoint, parallel_state
from rljob_trainer.megatron.actor import Actor
from rljob_trainer.megatron.critic import Critic, critic_metrics
from rljob_trainer.megatron.estimate import compute_advantages
from rljob_trainer.megatron.metrics import policy_metrics
from rljob_trainer.megatron.optimizer import NonFiniteError
from rljob_trainer.megatron.reward_models import RewardModels
from rljob_trainer.megatron.step import Step, generated_by
from rljob_trainer.memory import Meter
from rljob_trainer.objectives.kl import adapt
from rljob_trainer.parity import MismatchError
from rljob_trainer.trajectory import Trajectory, token_ages

__all__ = ["Engine", "MismatchError", "NonFiniteError"]


class Engine:
    """Everything that is trained or measured on the ranks. The default process group must exist; `compat.install()` must have been called."""

    def __init__(self, spec: RLJobSpec, heartbeat: Callable[[], None]) -> None:
        """Raises ConfigurationError for models that are wrong or do not fit the layout. `heartbeat` is called whenever something moved."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self._spec, self.layout, self.heartbeat = spec, str(Layout.of(spec)), heartbeat
        self._parallel = parallel_state.initialize(Layout.of(spec), device, spec.lifecycle.stall_timeout_seconds)
        self.data_rank = self._parallel.data_rank
        self._actor = Actor(spec, self._parallel, heartbeat)
        self._critic = Critic(spec, spec.critic, self._parallel, heartbeat) if spec.critic else None
        self._reward_models = RewardModels(spec, self._parallel, heartbeat)
        self._kl_coefficient = spec.algorithm.kl.coefficient
        self.backend = self._actor.backend
        self.memory = Meter()

    def train_step(self, batch: Batch) -> dict[str, float]:
        """One step of the job: rewards, fixed quantities, advantages of the whole step, then an optimizer step per epoch and mini-batch.

        Returns the metrics, the same on all ranks; without those that are not finite: when all optimizer steps were skipped, or no token was
        left to learn from.

        Raises:
            MismatchError: before the policy's optimizer step; see parity.LIMIT.
            NonFiniteError: before an optimizer step, unless `onNonFinite: skip`.
        """
        step = self._reward_models.add_to(Step.of(batch.samples, self._spec, self._parallel))
        self._actor.measure(step)
        if self._critic:
            step.keep("values", self._critic.values(step))
        age, oldest = token_ages(batch.step, step.samples)
        own = batch.step - 1 if self._spec.train.batches.replay is None else None
        step.put("on_policy", [generated_by(own, s) for s in step.samples])
        self.memory.enter("train")
        metrics = (
            self._learn(step, batch.step)
            | self._reward_models.metrics(step)
            | {
                "train/kl_coefficient": self._kl_coefficient,
                "train_rollout/policy_age": age,
                "train_rollout/policy_age_max": float(oldest),
                "train/tokens": float(sum(map(len, step.samples))),
            }
        )
        self._adapt(metrics["train/kl"], len(step.samples))
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def parts(self, columns: Columns) -> list[range]:
        """[data-parallel rank] -> rows of the step's trajectories that it needs."""
        return [range(len(columns))] * self._parallel.layout.data

    def log_probs(self, samples: Sequence[Trajectory]) -> list[torch.Tensor]:
        """Of every response token under the policy, at temperature 1."""
        return self._actor.log_probs(samples)

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full tensors of the policy in its dtype, one at a time. Every rank must drain it."""
        return self._actor.export()

    def release_memory(self) -> None:
        """Give the device what memory is held and not in use. Before servers wake that share it."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def save(self, directory: Path, reshardable: bool) -> Writing:
        """Start to write everything that training goes on from, as it is now, into a new directory that all ranks share; see `checkpoint`."""
        with self._all_here():
            return checkpoint.save(directory, self._state(), reshardable)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote, in this or another layout. The reference stays the model that the job started from."""
        with self._all_here():
            held = checkpoint.load(directory, self._state(), self.heartbeat)
        if self._spec.algorithm.kl.adaptive:
            self._kl_coefficient = held

    def _learn(self, step: Step, number: int) -> dict[str, float]:
        """The critic first: its networks and the policy's change places once per step."""
        advantages, episodes = compute_advantages(step, self._spec, self._kl_coefficient)
        step.put("advantages", step.rows(advantages.advantages))
        metrics: dict[str, float] = {}
        if self._critic and advantages.returns is not None:
            step.put("returns", step.rows(advantages.returns))
            metrics = critic_metrics(self._critic.learn(step), advantages, episodes)
        waits = self._spec.critic is not None and number <= self._spec.critic.warmup_steps
        teach = self._actor.evaluate_loss if waits else self._actor.learn
        return metrics | policy_metrics(teach(step, self._kl_coefficient))

    def _adapt(self, kl: float, samples: int) -> None:
        """The controller sees the mean divergence of the step."""
        adaptive = self._spec.algorithm.kl.adaptive
        if adaptive and math.isfinite(kl):
            self._kl_coefficient = adapt(self._kl_coefficient, kl, samples, adaptive)

    def _state(self) -> checkpoint.State:
        networks = {"policy": self._actor.network()} | ({"critic": self._critic.network()} if self._critic else {})
        return checkpoint.State(networks, self._kl_coefficient, self.layout)

    def _all_here(self) -> ExitStack:
        """What a checkpoint is made of lies on the device inside."""
        stack = ExitStack()
        for offloader in [self._actor.offloader] + ([self._critic.offloader] if self._critic else []):
            stack.enter_context(offloader.using("parameters", "optimizer"))
        return stack
