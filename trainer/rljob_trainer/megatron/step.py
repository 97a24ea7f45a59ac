"""The samples of one step, and what is measured of them: per micro-batch on the rank that measures, per sample on all ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron.packing import MicroBatch, MiniBatch, mini_batches
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Step:
    """Samples in (group, sample) order on every rank, and this rank's micro-batches of them."""

    samples: tuple[Trajectory, ...]
    batches: list[MiniBatch]
    parallel: ParallelState

    @staticmethod
    def of(samples: Iterable[Trajectory], spec: RLJobSpec, parallel: ParallelState) -> "Step":
        """Raises ValueError when no sample has a response."""
        ordered = tuple(sorted((s for s in samples if s.response_length), key=lambda s: (s.group, s.sample)))
        if not ordered:
            raise ValueError("the step has no samples to train on")
        step = Step(ordered, mini_batches(ordered, spec, parallel), parallel)
        step.put("rollout_log_probs", [torch.tensor(s.response_log_probs) for s in ordered])
        filtered = spec.algorithm.overlong.filter
        masks = [s.response_mask & (not filtered or s.finish_reason == "stop") for s in ordered]
        step.put("mask", [torch.tensor(mask) for mask in masks])
        return step

    @property
    def counts(self) -> list[int]:
        """Response tokens of each sample."""
        return [s.response_length for s in self.samples]

    def micro_batches(self) -> Iterable[MicroBatch]:
        """All of this rank, in the order of the mini-batches."""
        return (micro for batch in self.batches for micro in batch.micro_batches)

    def with_rewards(self, rewards: Sequence[float]) -> "Step":
        return replace(self, samples=tuple(replace(s, reward=r) for s, r in zip(self.samples, rewards, strict=True)))

    def put(self, name: str, values: Sequence[torch.Tensor]) -> None:
        """Make a column of per-sample values [count] in every micro-batch."""
        for micro in self.micro_batches():
            micro.put(name, values)

    def keep(self, name: str, parts: Sequence[torch.Tensor]) -> None:
        """Make a column of what a pass measured, [t] per micro-batch; nothing was measured on all but the last stage."""
        for micro, part in zip(self.micro_batches(), parts, strict=False):
            micro.columns[name] = part

    def gather(self, name: str) -> list[torch.Tensor]:
        """A column of every sample, [count] each in float32, on every rank. Collective; 4 bytes per response token of the step."""
        measured = [(m, m.columns[name]) for m in self.micro_batches() if name in m.columns]
        return gather(measured, self.counts, self.parallel)

    def padded(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Per-sample values [count] as [n, T] in float64, with zeros behind."""
        return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True).double()

    def rows(self, padded: torch.Tensor) -> list[torch.Tensor]:
        """The way back from `padded`."""
        return [row[:n] for row, n in zip(padded, self.counts, strict=True)]


def generated_by(policy_step: int | None, sample: Trajectory) -> torch.Tensor:
    """[count], 1.0 for response tokens that the policy of this step generated; None: that nobody knows."""
    steps = sample.policy_steps[sample.prompt_length :]
    return torch.tensor(np.zeros_like(steps) if policy_step is None else steps == policy_step).float()


def gather(
    measured: Sequence[tuple[MicroBatch, torch.Tensor]], counts: Sequence[int], parallel: ParallelState
) -> list[torch.Tensor]:
    """Per-token values [t] of micro-batches, as every rank measured its own, to per-sample ones [count] on every rank.

    One rank of each copy of the model contributes, and samples differ between copies: all others add zeros, so that the sum is exact.
    """
    found = [torch.zeros(n) for n in counts]
    for micro, part in measured if parallel.reports_metrics else ():
        for i, values in zip(micro.row.samples, micro.row.collect(part), strict=True):
            found[i] = values
    whole = torch.cat(found).to(parallel.device)
    dist.all_reduce(whole)
    return list(whole.cpu().split(list(counts)))
