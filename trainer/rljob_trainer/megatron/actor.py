"""The policy on its ranks: measured against its reference, trained, sent. Every method is collective."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from rljob_api.sizing.layout import Amounts
from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron import backend, checkpoint
from rljob_trainer.megatron.estimate import penalises_reward
from rljob_trainer.megatron.metrics import LOSS, MetricAccumulator, Update
from rljob_trainer.megatron.model import Policy
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.optimizer import Learner, build_optimizer
from rljob_trainer.megatron.packing import pack
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.passes import PolicyPasses
from rljob_trainer.megatron.reference import reference_of
from rljob_trainer.megatron.step import Step, gather
from rljob_trainer.parity import require_match
from rljob_trainer.trajectory import Trajectory


class Actor:
    """The policy, its reference and its optimizer."""

    def __init__(self, spec: RLJobSpec, parallel: ParallelState, heartbeat: Callable[[], None]) -> None:
        """Raises ConfigurationError for what is wrong with the models or does not fit the layout."""
        self._spec, self._parallel, self._heartbeat = spec, parallel, heartbeat
        self._policy = policy = Policy(spec, parallel)
        self._passes = PolicyPasses(policy, parallel, spec, heartbeat)
        held = spec.algorithm.kl.coefficient > 0
        self._reference = reference_of(spec, policy, self._passes, parallel, heartbeat) if held else None
        optimizer, scheduler = build_optimizer(spec.train.optimizer, policy.chunks, _optimizer_steps(spec))
        self.backend = backend.describe(policy.config, optimizer)
        self.offloader = Offloader(spec.trainer.offload, policy.modules, policy.chunks, optimizer)
        skips = spec.train.on_non_finite == "skip"
        self.learner = Learner(policy.chunks, optimizer, scheduler, self.offloader, skips)

    def measure(self, step: Step) -> None:
        """What stays as it is during the step, in the same micro-batches as the training passes.

        With one optimizer step the old log-probabilities are the training pass's own, detached, which is exact; with bypass nobody needs them.
        """
        micro_batches = list(step.micro_batches())
        with self.offloader.using("parameters"):
            if self._reference:
                step.keep("reference_log_probs", self._reference(micro_batches))
            if not self._bypass and (Amounts.of(self._spec).updates > 1 or penalises_reward(self._spec)):
                step.keep("old_log_probs", self._passes.log_probs(micro_batches))

    def log_probs(self, samples: Sequence[Trajectory]) -> list[torch.Tensor]:
        """Of every response token, at temperature 1, on every rank."""
        micro_batches = pack(samples, range(len(samples)), self._spec.train.tokens_per_micro_batch, self._parallel)
        with self.offloader.using("parameters"):
            measured = self._passes.log_probs(micro_batches, temperature=1.0)
        counts = [s.response_length for s in samples]
        return gather(list(zip(micro_batches, measured, strict=False)), counts, self._parallel)

    def learn(self, step: Step, kl_coefficient: float) -> list[Update]:
        """An optimizer step per epoch and mini-batch.

        Raises MismatchError, before the optimizer step, when the policy obviously did not draw what is `on_policy`; NonFiniteError.
        """
        updates: list[Update] = []
        with self.offloader.using("parameters", "gradients"):
            for _ in range(self._spec.train.epochs_per_step):
                for batch in step.batches:
                    # old log-probabilities are the first policy's but for bypass
                    compared = not (self._bypass and updates)
                    gradients = partial(self._passes.gradients, batch, kl_coefficient)
                    updates.append(self.learner.step(partial(self._total, gradients, compared)))
            self._policy.settle()
        return updates

    def evaluate_loss(self, step: Step, kl_coefficient: float) -> list[Update]:
        """Like `learn`, but nothing is learnt."""
        with self.offloader.using("parameters"):
            sums = [self._total(partial(self._passes.sums, b, kl_coefficient), compared=True) for b in step.batches]
        return [Update(s, norm=0.0, rate=0.0, skipped=False) for s in sums]

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full tensors in the model's dtype, one at a time. Every rank must drain it."""
        with self.offloader.using("parameters"):
            for name, tensor in self._policy.export():
                self._heartbeat()
                yield name, tensor

    def network(self) -> checkpoint.Network:
        """What a checkpoint needs of it; inside `offloader.using("parameters", "optimizer")`."""
        return checkpoint.Network(self._policy.modules, self.learner.optimizer, self.learner.scheduler, self.offloader)

    @property
    def _bypass(self) -> bool:
        return self._spec.algorithm.rollout_correction.bypass

    def _total(self, measured: Callable[[], MetricAccumulator], compared: bool) -> MetricAccumulator:
        sums = measured().over_world(counts=self._parallel.reports_metrics)
        on_policy = sums["on_policy"]
        if compared and on_policy and math.isfinite(sums[LOSS]):
            require_match(
                self._spec.model.dtype, sums["on_policy_difference"] / on_policy, sums.worst("on_policy_difference")
            )
        return sums


def _optimizer_steps(spec: RLJobSpec) -> int:
    """Of the whole job, without the steps in which only the critic learns."""
    waiting = spec.critic.warmup_steps if spec.critic else 0
    return Amounts.of(spec).optimizer_steps * max(0, spec.train.steps - waiting) // spec.train.steps
