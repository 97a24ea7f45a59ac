"""The policy's engine: loads, trains, exports and saves it. SPMD: every method is collective over all ranks of the process group."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from rljob_api.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.advantage import ADVANTAGES, Episodes
from rljob_trainer.batch import Sample, StepBatch
from rljob_trainer.megatron import checkpoint, parallel
from rljob_trainer.megatron.batching import MiniBatch, mini_batches
from rljob_trainer.megatron.model import HAVE_TE, Policy, build_optimizer
from rljob_trainer.megatron.passes import Passes
from rljob_trainer.megatron.reference import HostCopy
from rljob_trainer.megatron.sums import Sums

MISMATCH_LIMIT = {"float32": 1e-2, "bfloat16": 0.2}
"""Largest mean |train - rollout| log-probability of a batch that its own policy drew.

float32: trainer and server differ by about 2e-5 when both are right; stale keys and values or a wrong tensor show as 0.1 to 9.
bfloat16: rounding alone gives about 0.02, differently in every kernel, and more in long responses of large models.
"""


class MismatchError(RuntimeError):
    """The rollouts did not sample from the policy that is being trained: weights were lost, mixed up or left stale."""


class NonFiniteError(RuntimeError):
    """The loss or the gradient is not a number. The parameters are not to be used any more."""


class Engine:
    """One policy on all ranks. The default process group must exist; `runtime.install()` must have been called."""

    def __init__(self, spec: RLJobSpec, beat: Callable[[], None]) -> None:
        """Raises ConfigurationError for what is wrong with the model or does not fit the layout. `beat` is called with every bit of progress."""
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self._spec, self._beat, self.layout = spec, beat, str(Layout.of(spec))
        self._place = parallel.start(Layout.of(spec), device)
        self._policy = Policy(spec, self._place)
        self._reference = HostCopy(self._policy.module) if spec.algorithm.kl.coefficient > 0 else None
        self._optimizer, self._scheduler = build_optimizer(spec, self._policy.ddp)
        self._passes = Passes(self._policy, self._place, spec.algorithm, spec.rollout.sampling.temperature, beat)
        self.backend = f"{'Transformer Engine' if HAVE_TE else 'torch'} layers, {torch.distributed.get_backend()}"

    def train_step(self, batch: StepBatch) -> dict[str, float]:
        """One step of the job: advantages, reference and old log-probabilities, then an optimizer step per mini-batch.

        Returns the metrics, the same on all ranks.

        Raises:
            MismatchError: before the optimizer step; see MISMATCH_LIMIT.
            NonFiniteError: the loss (before the optimizer step) or the gradient is not finite.
        """
        samples = sorted((s for s in batch.samples if s.response_tokens), key=lambda s: (s.group, s.sample))
        if not samples:
            raise ValueError(f"step {batch.step} has no samples to train on")
        batches = mini_batches(samples, self._advantages(samples), self._spec, self._place)
        self._measure_fixed_log_probs(batches)
        on_policy = all(s.policy_step == batch.step - 1 for s in samples) and self._spec.train.batches.replay is None
        steps = [self._optimize(b, on_policy) for b in batches]
        return _metrics(steps, tokens=sum(len(s.prompt_tokens) + len(s.response_tokens) for s in samples))

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full tensors in the model's dtype, one at a time. Every rank must drain it."""
        for name, tensor in self._policy.export():
            self._beat()
            yield name, tensor

    def save(self, directory: Path) -> None:
        """Write everything that training goes on from into a new directory that all ranks share; see `checkpoint`."""
        checkpoint.save(directory, self._state())

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote, in this or another layout. The reference stays the model that the job started from."""
        checkpoint.load(directory, self._state())

    def _state(self) -> checkpoint.State:
        return checkpoint.State(self._policy.module, self._optimizer, self._scheduler, self.layout)

    def _advantages(self, samples: list[Sample]) -> list[float]:
        rewards = torch.tensor([s.reward for s in samples], dtype=torch.float64)
        groups = torch.tensor([s.group for s in samples])
        one_token = torch.ones(len(samples), 1, dtype=torch.float64)
        episodes = Episodes(rewards, groups, one_token, torch.zeros_like(one_token))
        found = ADVANTAGES[self._spec.algorithm.advantage](episodes, self._spec.algorithm)
        return found.advantages[:, 0].tolist()

    def _measure_fixed_log_probs(self, batches: list[MiniBatch]) -> None:
        """Log-probabilities that stay as they are during the step, in the same packing as the training passes.

        With one mini-batch the old ones are the training pass's own, detached, which is exact.
        """
        if self._reference:
            with self._reference.swapped_in():
                for b in batches:
                    for micro, values in zip(b.micro_batches, self._passes.log_probs(b), strict=False):
                        micro.reference_log_probs = values
        for b in batches if len(batches) > 1 else ():
            for micro, values in zip(b.micro_batches, self._passes.log_probs(b), strict=False):
                micro.old_log_probs = values

    def _optimize(self, batch: MiniBatch, on_policy: bool) -> tuple[Sums, float, float]:
        """One optimizer step. Returns the mini-batch's sums, the norm of its gradient before clipping, and the learning rate."""
        self._policy.ddp.zero_grad_buffer()
        self._optimizer.zero_grad()
        sums = self._passes.gradients(batch).over_world(counts=self._place.speaks)
        if not math.isfinite(sums["loss"]):
            raise NonFiniteError(f"the loss is {sums['loss']}")
        if on_policy:
            self._check_mismatch(sums)
        rate = self._optimizer.param_groups[0]["lr"]
        _, norm, _ = self._optimizer.step()
        if not math.isfinite(norm):
            raise NonFiniteError(f"the norm of the gradient is {norm}")
        self._scheduler.step(1)
        return sums, float(norm), rate

    def _check_mismatch(self, sums: Sums) -> None:
        limit = MISMATCH_LIMIT[self._spec.model.dtype]
        mean = sums.mean("difference")
        if not mean <= limit:
            raise MismatchError(
                f"log-probabilities of the trainer and the rollouts differ by {mean:.3g} per token on average (at most {float(sums.worst):.3g}); "
                f"{limit:g} is the limit for {self._spec.model.dtype}. The rollouts do not serve the weights that are being trained"
            )


def _metrics(steps: list[tuple[Sums, float, float]], tokens: int) -> dict[str, float]:
    """Losses, norms and rates are means over the mini-batches, the rest is per response token of the step."""
    parts, norms, rates = zip(*steps, strict=True)
    total = sum(parts[1:], parts[0])
    return {
        "train/loss": total["loss"] / len(parts),
        "train/kl": total.mean("kl"),
        "train/entropy": total.mean("entropy"),
        "train/grad_norm": sum(norms) / len(norms),
        "train/clip_fraction": total.mean("clipped"),
        "train/ratio_mean": total.mean("ratio"),
        "train/learning_rate": sum(rates) / len(rates),
        "train/tokens": float(tokens),
        "train_rollout/log_prob_diff_mean": total.mean("difference"),
        "train_rollout/log_prob_diff_max": float(total.worst),
    }
