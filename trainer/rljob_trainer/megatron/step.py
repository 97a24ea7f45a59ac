"""The samples of one step, and what is measured of them: per micro-batch on the rank that measures, per sample on all ranks."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Sample
from rljob_trainer.megatron.packing import MicroBatch, MiniBatch, mini_batches
from rljob_trainer.megatron.parallel_state import ParallelState


@dataclass(frozen=True, slots=True)
class Step:
    """Samples in (group, sample) order on every rank, and this rank's micro-batches of them."""

    samples: tuple[Sample, ...]
    batches: list[MiniBatch]
    parallel: ParallelState

    @staticmethod
    def of(samples: Iterable[Sample], spec: RLJobSpec, parallel: ParallelState) -> "Step":
        """Raises ValueError when no sample has a response."""
        ordered = tuple(sorted((s for s in samples if s.response_tokens), key=lambda s: (s.group, s.sample)))
        if not ordered:
            raise ValueError("the step has no samples to train on")
        step = Step(ordered, mini_batches(ordered, spec, parallel), parallel)
        step.put("rollout_log_probs", [torch.frombuffer(array("f", s.log_probs), dtype=torch.float32) for s in ordered])
        if spec.algorithm.overlong.filter:
            step.put(
                "mask",
                [torch.full((n,), float(s.finish_reason == "stop")) for n, s in zip(step.counts, ordered, strict=True)],
            )
        return step

    @property
    def counts(self) -> list[int]:
        """Response tokens of each sample."""
        return [len(s.response_tokens) for s in self.samples]

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


def generated_by(policy_step: int | None, sample: Sample) -> torch.Tensor:
    """[count], 1.0 for response tokens that the policy of this step drew."""
    return torch.cat([torch.full((span.tokens,), float(span.policy_step == policy_step)) for span in sample.spans])


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
