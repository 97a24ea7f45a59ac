"""Which trajectories go into which micro-batch of which data-parallel rank. Pure arithmetic of lengths, without torch: every rank, and whoever hands
batches out, computes the same."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Columns

Plan = list[list[list[int]]]
"""[data-parallel rank][micro-batch] -> indices of sequences, ascending; a micro-batch may be empty."""

MANY = 16
"""Sequences that are so many in a micro-batch waste little of it."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The cut of a step into optimizer steps, and of these over ranks."""

    mini_batches: tuple[Plan, ...]
    """Rows of the step's columns. Those without a response are in none."""

    def rows(self, data_rank: int) -> list[int]:
        """What a data-parallel rank needs, ascending."""
        return sorted(row for plan in self.mini_batches for micro in plan[data_rank] for row in micro)


def plan_step(columns: Columns, spec: RLJobSpec, layout: Layout) -> StepPlan:
    """Mini-batches of whole groups, none of them empty; each spread over ranks and micro-batches.

    A sequence takes its tokens without the last, which predicts nothing; with it, where reward models read whole sequences in the same cut.

    Raises ValueError when no trajectory has a response, or one is longer than a micro-batch.
    """
    kept = np.flatnonzero(columns.response_length)
    if not len(kept):
        raise ValueError("the step has no trajectories to train on")
    whole = any(reward.model for reward in spec.rewards)
    groups = sorted(set(columns.group[kept].tolist()))
    count = min(spec.train.mini_batches, len(groups))
    share = {group: i * count // len(groups) for i, group in enumerate(groups)}
    members = [[row for row in kept.tolist() if share[int(columns.group[row])] == m] for m in range(count)]
    return StepPlan(tuple(_plan(rows, columns.length[rows] - (not whole), spec, layout) for rows in members))


def plan_rows(rows: Sequence[int], lengths: Sequence[int], spec: RLJobSpec, layout: Layout) -> Plan:
    """Spread these rows, whose sequences have these lengths, as `plan` does."""
    spaces = [space(n, layout) for n in lengths]
    found = plan(spaces, spec.train.tokens_per_micro_batch, layout.alignment, layout.data, layout.micro_batch_multiple)
    return [[[rows[i] for i in micro] for micro in rank] for rank in found]


def _plan(rows: list[int], lengths: np.ndarray, spec: RLJobSpec, layout: Layout) -> Plan:
    return plan_rows(rows, lengths.tolist(), spec, layout)


def space(length: int, layout: Layout) -> int:
    """The room of a sequence in the row: context-parallel ranks take equal chunks of it. Nothing of the sequence sees what fills it up."""
    return -(-length // layout.sequence_alignment) * layout.sequence_alignment


def plan(lengths: Sequence[int], budget: int, alignment: int, ranks: int, multiple: int = 1) -> Plan:
    """Spread sequences of `lengths` tokens over as few micro-batches as the budget allows, equally many on every rank, of about equal size.

    No micro-batch has more than `budget` tokens after it was filled up to a multiple of `alignment`. Equal counts, multiples of
    `multiple`, are what the schedules and the collectives of megatron need; micro-batches without sequences are run on filling that has no weight.

    Raises:
        ValueError: a sequence alone is longer than the budget.
    """
    room = budget // alignment * alignment
    if lengths and max(lengths) > room:
        raise ValueError(f"a sample has {max(lengths)} tokens, more than a micro-batch of {room} can hold")
    group = ranks * multiple
    count = group * -(-_fewest(lengths, room) // group)
    while (batches := _spread(lengths, count, room)) is None:
        count += group
    return [batches[rank::ranks] for rank in range(ranks)]


def _fewest(lengths: Sequence[int], room: int) -> int:
    """As many micro-batches are needed at least: for all tokens, and because only k sequences fit into one that are longer than room / (k + 1)."""
    found = np.asarray(lengths, np.int64)
    return max(1, -(-int(found.sum()) // room), *(-(-int((found * (k + 1) > room).sum()) // k) for k in range(1, MANY)))


def _spread(lengths: Sequence[int], count: int, room: int) -> list[list[int]] | None:
    """Longest first, each into the emptiest micro-batch (Graham 1969: at most 4/3 of the best balance); None when something does not fit."""
    batches: list[list[int]] = [[] for _ in range(count)]
    emptiest = [(0, b) for b in range(count)]
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size, b = emptiest[0]
        if size + lengths[i] > room:
            return None
        batches[b].append(i)
        heapq.heapreplace(emptiest, (size + lengths[i], b))
    sizes = {b: size for size, b in emptiest}
    return [sorted(batches[b]) for b in sorted(range(count), key=lambda b: -sizes[b])]
