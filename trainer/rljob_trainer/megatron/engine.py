"""The policy's engine: loads, trains, exports and saves it. SPMD: every method is collective over all ranks of the process group."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from rljob_api.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.kl import adapt
from rljob_trainer.batch import StepBatch
from rljob_trainer.megatron import backend, checkpoint, parallel
from rljob_trainer.megatron.batching import MiniBatch
from rljob_trainer.megatron.estimate import estimate, penalises_reward
from rljob_trainer.megatron.figures import policy_figures
from rljob_trainer.megatron.learner import Learner, NonFiniteError, Update
from rljob_trainer.megatron.model import Policy, build_optimizer
from rljob_trainer.megatron.passes import PolicyPasses
from rljob_trainer.megatron.reference import HostCopy
from rljob_trainer.megatron.step import Step
from rljob_trainer.megatron.sums import LOSS, Sums
from rljob_trainer.megatron.writing import Writing

__all__ = ["Engine", "MismatchError", "NonFiniteError"]

MISMATCH_LIMIT = {"float32": 1e-2, "bfloat16": 0.2}
"""Largest mean |train - rollout| log-probability of a batch that its own policy drew.

float32: trainer and server differ by about 2e-5 when both are right; stale keys and values or a wrong tensor show as 0.1 to 9.
bfloat16: rounding alone gives about 0.02, differently in every kernel, and more in long responses of large models.
"""


class MismatchError(RuntimeError):
    """The rollouts did not sample from the policy that is being trained: weights were lost, mixed up or left stale."""


class Engine:
    """One policy on all ranks. The default process group must exist; `runtime.install()` must have been called."""

    def __init__(self, spec: RLJobSpec, beat: Callable[[], None]) -> None:
        """Raises ConfigurationError for what is wrong with the model or does not fit the layout. `beat` is called with every bit of progress."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self._spec, self._beat, self.layout = spec, beat, str(Layout.of(spec))
        self._place = parallel.start(Layout.of(spec), device)
        self._policy = Policy(spec, self._place)
        self._reference = HostCopy(self._policy.modules) if spec.algorithm.kl.coefficient > 0 else None
        optimizer, scheduler = build_optimizer(spec, self._policy.chunks)
        self._learner = Learner(self._policy.chunks, optimizer, scheduler, spec.train.on_non_finite == "skip")
        self._passes = PolicyPasses(self._policy, self._place, spec.algorithm, spec.rollout.sampling.temperature, beat)
        self._kl_coefficient = spec.algorithm.kl.coefficient
        self.backend = backend.describe(self._policy.config, optimizer)

    def train_step(self, batch: StepBatch) -> dict[str, float]:
        """One step of the job: fixed quantities, advantages of the whole step, then an optimizer step per epoch and mini-batch.

        Returns the metrics, the same on all ranks.

        Raises:
            MismatchError: before the optimizer step; see MISMATCH_LIMIT.
            NonFiniteError: before the optimizer step, unless `onNonFinite: skip`.
        """
        step = Step.of(batch.samples, self._spec, self._place)
        self._measure(step)
        advantages, _ = estimate(step, self._spec, self._kl_coefficient)
        step.put("advantages", [a[:n] for a, n in zip(advantages.advantages, step.counts, strict=True)])
        fresh = all(s.policy_step == batch.step - 1 for s in step.samples) and self._spec.train.batches.replay is None
        updates = self._learn(step, fresh)
        self._policy.settle()
        metrics = policy_figures(updates) | {
            "train/kl_coefficient": self._kl_coefficient,
            "train/tokens": float(sum(len(s.prompt_tokens) + len(s.response_tokens) for s in step.samples)),
        }
        self._adapt(metrics["train/kl"], len(step.samples))
        return metrics

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full tensors in the model's dtype, one at a time. Every rank must drain it."""
        for name, tensor in self._policy.export():
            self._beat()
            yield name, tensor

    def save(self, directory: Path, reshardable: bool) -> Writing:
        """Start to write everything that training goes on from, as it is now, into a new directory that all ranks share; see `checkpoint`."""
        return checkpoint.save(directory, self._state(), reshardable)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote, in this or another layout. The reference stays the model that the job started from."""
        held = checkpoint.load(directory, self._state())
        if self._spec.algorithm.kl.adaptive:
            self._kl_coefficient = held

    def _state(self) -> checkpoint.State:
        policy = checkpoint.Network(self._policy.modules, self._learner.optimizer, self._learner.scheduler)
        return checkpoint.State({"policy": policy}, self._kl_coefficient, self.layout)

    @property
    def _updates(self) -> int:
        """Optimizer steps of a step, at most."""
        return self._spec.train.mini_batches * self._spec.train.epochs_per_step

    def _measure(self, step: Step) -> None:
        """What stays as it is during the step, in the same micro-batches as the training passes.

        With one optimizer step the old log-probabilities are the training pass's own, detached, which is exact; with bypass nobody needs them.
        """
        micro_batches = list(step.micro_batches())
        if self._reference:
            with self._reference.swapped_in():
                step.keep("reference_log_probs", self._passes.log_probs(micro_batches))
        bypass = self._spec.algorithm.rollout_correction.bypass
        if not bypass and (self._updates > 1 or penalises_reward(self._spec)):
            step.keep("old_log_probs", self._passes.log_probs(micro_batches))

    def _learn(self, step: Step, fresh: bool) -> list[Update]:
        """`fresh`: the policy of before the first optimizer step drew the samples. Old log-probabilities are that policy's, but with bypass."""
        bypass = self._spec.algorithm.rollout_correction.bypass
        updates: list[Update] = []
        for _ in range(self._spec.train.epochs_per_step):
            for batch in step.batches:
                compared = fresh and not (bypass and updates)
                updates.append(self._learner.step(partial(self._gradients, batch, compared)))
        return updates

    def _gradients(self, batch: MiniBatch, compared: bool) -> Sums:
        sums = self._passes.gradients(batch, self._kl_coefficient).over_world(counts=self._place.speaks)
        if compared and math.isfinite(sums[LOSS]):
            self._check_mismatch(sums)
        return sums

    def _adapt(self, kl: float, samples: int) -> None:
        """The controller sees the mean divergence of the step."""
        adaptive = self._spec.algorithm.kl.adaptive
        if adaptive and math.isfinite(kl):
            self._kl_coefficient = adapt(self._kl_coefficient, kl, samples, adaptive)

    def _check_mismatch(self, sums: Sums) -> None:
        limit = MISMATCH_LIMIT[self._spec.model.dtype]
        mean, worst = sums.mean("difference"), sums.worst("difference")
        if not mean <= limit:
            raise MismatchError(
                f"log-probabilities of the trainer and the rollouts differ by {mean:.3g} per token on average (at most {worst:.3g}); "
                f"{limit:g} is the limit for {self._spec.model.dtype}. The rollouts do not serve the weights that are being trained"
            )
