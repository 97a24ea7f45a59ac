"""Packs trajectories into the tensors of micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.megatron import context_parallel
from rljob_trainer.megatron.batching import padded_length
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.wire.images import Placed, positions
from rljob_trainer.wire.trajectory import Trajectory

GRIDS = "image_grid_thw"
MASK = "mask"


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The layout of a packed micro-batch: where the trajectories lie in the row of tokens, and which part of it this context-parallel rank has.

    It converts per-trajectory values to per-token ones and back. All tensors are on the CPU.
    """

    rows: tuple[int, ...]
    """Rows of the trajectories in the step's columns."""
    counts: tuple[int, ...]
    """Response tokens of each trajectory, including those of an environment."""
    places: torch.Tensor
    """[t], index into the concatenated response tokens of all trajectories, for each token of this rank; sum(counts) for other tokens."""
    length: int
    """Tokens of the whole row, over all context-parallel ranks."""
    starts: tuple[int, ...]
    """Index in the row of the first token of each trajectory."""
    share: torch.Tensor
    """[t], indices in the row of this rank's tokens (its CP partition)."""

    def spread(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Per-trajectory values of response tokens, [count, ...] each -> [t, ...] on this rank, 0 for other tokens."""
        nothing = values[0].new_zeros(1, *values[0].shape[1:]) if values else torch.zeros(1)
        return torch.cat([*values, nothing]).index_select(0, self.places)

    def collect(self, part: torch.Tensor) -> list[torch.Tensor]:
        """The inverse of `spread`, in float32 on the CPU. Tokens of other context-parallel ranks are 0, so the sum over ranks is complete."""
        collected = torch.zeros(sum(self.counts) + 1, *part.shape[1:])
        collected[self.places] = part.detach().float().cpu()
        return list(collected[:-1].split(self.counts))


@dataclass(slots=True)
class MicroBatch:
    """Sequences packed into one row, of which this rank has t tokens. Per-token tensors are [t], on the device."""

    row: PackedRow
    tokens: torch.Tensor
    """[1, t]"""
    positions: torch.Tensor
    """[1, t], counted from 0 in every sequence. With images [3, 1, t], see images.positions."""
    packed: PackedSeqParams
    targets: torch.Tensor
    """[t], the next token after each."""
    after_next: torch.Tensor
    """[t], the token two places after each; -1: there is none."""
    sequences: Sequences
    """Which trajectory of the row each token belongs to."""
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    """[name] -> [t] float32, or [t, K] of several values for each, fixed quantities of response tokens, 0 for other tokens; see `put`. Always has
    `mask`, 1 for tokens in the loss."""
    images: dict[str, torch.Tensor] = field(default_factory=dict)
    """Additional inputs of a model with a vision tower; empty without images. Of each distinct image: `pixel_values` [p, values of a patch], and on
    the CPU `image_grid_thw` [i, 3]. Of each image token: `image_places` [v], its index in the row, and `image_rows` [v], its row in the tower's
    output."""

    learnt: torch.Tensor = field(init=False)
    """[u], indices of this rank's tokens with `mask`, ascending; the first token where there are none. Of the others nobody reads logits."""

    routed_experts: dict[int, torch.Tensor] = field(default_factory=dict)
    """[layer number, from 1] -> uint8 or int16, the experts to which its router sends each of its tokens. See routing.Routing."""

    def put(self, name: str, values: Mapping[int, torch.Tensor] | Sequence[torch.Tensor]) -> None:
        """Add a column. `values`: [row] -> [count, ...], per trajectory."""
        column = self.row.spread([values[i] for i in self.row.rows])
        self.columns[name] = column.to(self.targets.device).float()
        if name == MASK:  # on the CPU: counting on the device would wait for it
            learnt = column.nonzero()[:, 0] if column.any() else torch.zeros(1, dtype=torch.long)
            self.learnt = learnt.to(self.targets.device)


def micro_batch(
    trajectories: Mapping[int, Trajectory] | Sequence[Trajectory],
    rows: Sequence[int],
    parallel: ParallelState,
    with_last_token: bool = False,
) -> MicroBatch:
    """Pack the trajectories of these rows. Padding up to the alignment is one more sequence, of zeros.

    Per-token values of a response token are stored at the position that predicts it, and the last token, which predicts nothing, is left out. With
    `with_last_token`, for value models, they are stored at the position of the token itself, and the whole trajectory is packed.
    """
    chosen = [trajectories[i] for i in rows]
    lengths = [len(t) - (not with_last_token) for t in chosen]
    sequences = [padded_length(n, parallel.layout) for n in lengths]
    alignment = parallel.layout.alignment
    padding = -sum(sequences) % alignment or (0 if lengths else alignment)
    if padding:
        sequences.append(padding)
    row = _row(rows, [t.response_length for t in chosen], lengths, sequences, parallel)
    tokens, targets, after_next, index = (torch.zeros(row.length, dtype=torch.long) for _ in range(4))
    after_next -= 1
    index += len(chosen)
    for i, (start, n) in enumerate(zip(accumulate(sequences, initial=0), lengths, strict=False)):
        whole = torch.from_numpy(chosen[i].tokens.astype(np.int64))
        tokens[start : start + n] = whole[:n]
        targets[start : start + min(n, len(whole) - 1)] = whole[1 : n + 1]
        further = whole[2 : n + 2]
        after_next[start : start + len(further)] = further
        index[start : start + n] = i
    placed = [[(at, image) for at, image in t.images if at < n] for t, n in zip(chosen, lengths, strict=True)]
    places = _positions(sequences, placed)
    tokens, places, targets, after_next, index = (
        x[..., row.share].to(parallel.device) for x in (tokens, places, targets, after_next, index)
    )
    of = Sequences(index, len(chosen), parallel.over_context)
    micro = MicroBatch(row, tokens[None], places.unsqueeze(-2), _packed(sequences, parallel), targets, after_next, of)
    images = _images(sequences, placed)
    micro.images = {name: x if name == GRIDS else x.to(parallel.device) for name, x in images.items()}
    micro.put(MASK, {i: torch.from_numpy(t.response_mask) for i, t in zip(rows, chosen, strict=True)})
    return micro


def _positions(sequences: list[int], placed: Sequence[Sequence[Placed]]) -> torch.Tensor:
    """Position ids [row], or [3, row] with images. Padding counts as text."""
    if not any(placed):
        return torch.cat([torch.arange(n) for n in sequences])
    of_each = zip(sequences, chain(placed, repeat([])), strict=False)
    return torch.from_numpy(np.concatenate([positions(n, images) for n, images in of_each], axis=1))


def _images(sequences: list[int], placed: Sequence[Sequence[Placed]]) -> dict[str, torch.Tensor]:
    """See MicroBatch.images. Samples of one prompt share its images in memory."""
    starts = accumulate(sequences, initial=0)
    placed_images = [(start + at, image) for start, images in zip(starts, placed, strict=False) for at, image in images]
    if not placed_images:
        return {}
    distinct = {id(image): image for _, image in placed_images}
    first = dict(zip(distinct, accumulate((image.tokens for image in distinct.values()), initial=0), strict=False))
    return {
        "pixel_values": torch.from_numpy(np.concatenate([image.pixels for image in distinct.values()])),
        GRIDS: torch.tensor([(1, *image.grid) for image in distinct.values()]),
        "image_places": torch.cat([torch.arange(image.tokens) + at for at, image in placed_images]),
        "image_rows": torch.cat([torch.arange(image.tokens) + first[id(image)] for _, image in placed_images]),
    }


def _row(
    rows: Sequence[int], counts: list[int], lengths: list[int], sequences: list[int], parallel: ParallelState
) -> PackedRow:
    """`lengths`: tokens of each trajectory, at whose end its response lies; `sequences`: the same with padding. [t] tensors are taken from the row by
    `share`, which is where context parallelism cuts it."""
    starts = tuple(accumulate(sequences, initial=0))
    ends = [start + n for start, n in zip(starts, lengths, strict=False)]
    responses = [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
    share = context_parallel.rows(starts, parallel.layout.context, parallel.context_rank)
    places = torch.full((starts[-1],), sum(counts))
    places[torch.cat([torch.arange(0), *responses])] = torch.arange(sum(counts))
    return PackedRow(tuple(rows), tuple(counts), places[share], starts[-1], starts[: len(rows)], share)


def _packed(lengths: list[int], parallel: ParallelState) -> PackedSeqParams:
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=parallel.device)
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts, max_seqlen_q=longest, max_seqlen_kv=longest
    )
