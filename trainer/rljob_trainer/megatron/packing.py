"""From samples to the tensors of packed micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron import context_parallel
from rljob_trainer.megatron.batching import plan
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.objectives.aggregation import token_weights
from rljob_trainer.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """The whole row of tokens of a micro-batch, as the samples lie in it, and this rank's share of it. All on CPU.

    The one place that knows how per-sample quantities become per-token ones and back.
    """

    samples: tuple[int, ...]
    """Their indices in the step."""
    counts: tuple[int, ...]
    """Response tokens of each."""
    responses: torch.Tensor
    """[r], where the response tokens lie in the row, sample after sample."""
    length: int
    """Tokens of the whole row."""
    share: torch.Tensor
    """[t], which of them this rank has, in its order."""

    def spread(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Values of the samples' response tokens, [count] each, to this rank's [t]; 0 elsewhere."""
        whole = torch.zeros(self.length, dtype=values[0].dtype if values else torch.float32)
        whole[self.responses] = torch.cat(list(values)) if values else whole[:0]
        return whole[self.share]

    def collect(self, part: torch.Tensor) -> list[torch.Tensor]:
        """The way back, in float32 on CPU. Tokens that another rank has are 0: the sum over ranks is the whole."""
        whole = torch.zeros(self.length)
        whole[self.share] = part.detach().float().cpu()
        return list(whole[self.responses].split(self.counts))


@dataclass(slots=True)
class MicroBatch:
    """Sequences behind each other in one row, of which this rank has t tokens; per-token tensors are [t], on the device."""

    row: Row
    tokens: torch.Tensor
    """[1, t]"""
    positions: torch.Tensor
    """[1, t]. From 0 in every sequence."""
    packed: PackedSeqParams
    targets: torch.Tensor
    """The token after each."""
    index: torch.Tensor
    """Which of the row's samples a token belongs to; their number for filling."""
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    """Fixed quantities of response tokens, float32, 0 elsewhere; see `put`. Always there: `mask`, 1 for tokens that are learnt from."""

    def put(self, name: str, values: Sequence[torch.Tensor]) -> None:
        """`values`: of every sample of the step, [count] each."""
        column = self.row.spread([values[i] for i in self.row.samples])
        self.columns[name] = column.float().to(self.targets.device)


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """This rank's share of one optimizer step."""

    micro_batches: list[MicroBatch]
    response_tokens: int
    """Of the whole mini-batch over all ranks."""
    read_tokens: int
    """That the model reads, likewise, without filling."""


def mini_batches(samples: Sequence[Trajectory], spec: RLJobSpec, parallel: ParallelState) -> list[MiniBatch]:
    """Cut a step's samples, in (group, sample) order, into optimizer steps; a group is never cut, and no mini-batch is empty."""
    groups = sorted({s.group for s in samples})
    count = min(spec.train.mini_batches, len(groups))
    share = {g: i * count // len(groups) for i, g in enumerate(groups)}
    members = [[i for i, s in enumerate(samples) if share[s.group] == m] for m in range(count)]
    return [_mini_batch(samples, chosen, spec, parallel) for chosen in members]


def _mini_batch(
    samples: Sequence[Trajectory], members: list[int], spec: RLJobSpec, parallel: ParallelState
) -> MiniBatch:
    counts = [samples[i].response_length for i in members]
    weights = token_weights(counts, spec.algorithm.aggregation, spec.rollout.sampling.max_tokens)
    of_sample = {i: torch.full((n,), w) for i, n, w in zip(members, counts, weights, strict=True)}
    micro_batches = pack(samples, members, spec.train.tokens_per_micro_batch, parallel)
    for micro in micro_batches:
        micro.columns["weights"] = micro.row.spread([of_sample[i] for i in micro.row.samples]).to(parallel.device)
    return MiniBatch(micro_batches, sum(counts), sum(_fed(samples[i], complete=False) for i in members))


def pack(
    samples: Sequence[Trajectory], members: Sequence[int], budget: int, parallel: ParallelState, complete: bool = False
) -> list[MicroBatch]:
    """This rank's micro-batches of the samples `members`. `complete`: see `micro_batch`."""
    layout = parallel.layout
    spaces = [_space(_fed(samples[i], complete), layout) for i in members]
    found = plan(spaces, budget, layout.alignment, layout.data, layout.micro_batch_multiple)
    return [
        micro_batch(samples, [members[i] for i in chosen], parallel, complete) for chosen in found[parallel.data_rank]
    ]


def _fed(sample: Trajectory, complete: bool) -> int:
    """Tokens of a sample that the model reads."""
    return len(sample) - (not complete)


def _space(fed: int, layout: Layout) -> int:
    """The room of a sequence in the row: context-parallel ranks take equal chunks of it. Nothing of the sequence sees what fills it up."""
    return -(-fed // layout.sequence_alignment) * layout.sequence_alignment


def micro_batch(
    samples: Sequence[Trajectory], chosen: Sequence[int], parallel: ParallelState, complete: bool = False
) -> MicroBatch:
    """Pack the samples `chosen`; filling up to the alignment is one more sequence, of zeros.

    A response token lies where the model predicts it, and a sample's last token, which predicts nothing, is left out. `complete`: it lies
    where it is read, and the whole sample is there; for models that judge what they have read.
    """
    lengths = [_fed(samples[i], complete) for i in chosen]
    sequences = [_space(n, parallel.layout) for n in lengths]
    alignment = parallel.layout.alignment
    if filling := -sum(sequences) % alignment or (0 if lengths else alignment):
        sequences.append(filling)
    row = _row(samples, chosen, lengths, sequences, parallel)
    tokens, targets, index = (torch.zeros(row.length, dtype=torch.long) for _ in range(3))
    index += len(chosen)
    for i, (start, n) in enumerate(zip(accumulate(sequences, initial=0), lengths, strict=False)):
        whole = torch.from_numpy(samples[chosen[i]].tokens.astype(np.int64))
        tokens[start : start + n] = whole[:n]
        targets[start : start + min(n, len(whole) - 1)] = whole[1 : n + 1]
        index[start : start + n] = i
    positions = torch.cat([torch.arange(n) for n in sequences])
    tensors = [x[row.share].to(parallel.device) for x in (tokens, positions, targets, index)]
    micro = MicroBatch(row, tensors[0][None], tensors[1][None], _packed(sequences, parallel), tensors[2], tensors[3])
    micro.columns["mask"] = row.spread([torch.ones(n) for n in row.counts]).to(parallel.device)
    return micro


def _row(
    samples: Sequence[Trajectory],
    chosen: Sequence[int],
    lengths: Sequence[int],
    sequences: Sequence[int],
    parallel: ParallelState,
) -> Row:
    """Responses end where the tokens of their sequence end. Context parallelism cuts here: what is [t] is taken from the row by the share."""
    counts = tuple(samples[i].response_length for i in chosen)
    starts = tuple(accumulate(sequences, initial=0))
    ends = [start + n for start, n in zip(starts, lengths, strict=False)]
    responses = [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
    share = context_parallel.rows(starts, parallel.layout.context, parallel.context_rank)
    return Row(tuple(chosen), counts, torch.cat([torch.arange(0), *responses]), starts[-1], share)


def _packed(lengths: list[int], parallel: ParallelState) -> PackedSeqParams:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=parallel.device)
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=longest, max_seqlen_kv=longest
    )
