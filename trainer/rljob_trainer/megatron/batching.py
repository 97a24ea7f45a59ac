"""Which trajectories go into which micro-batch of which data-parallel rank. Pure arithmetic of lengths, without torch: every rank, and whoever hands
batches out, computes the same."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Columns

Plan = list[list[list[int]]]
"""[data-parallel rank][micro-batch] -> indices of sequences, ascending; a micro-batch may be empty."""

SETS_PER_MICRO_BATCH = (2, 4, 8)
"""A micro-batch has room for so many sets of samples with the same images, which go through the tower once: the first number with which at most
a tenth more micro-batches are needed. The tokens are the same, and a pass of the tower is most of what a sample with images costs."""
MANY = 16
"""Sequences that are so many in a micro-batch waste little of it."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The cut of a step into optimizer steps, and of these over ranks."""

    mini_batches: tuple[Plan, ...]
    """Rows of the step's columns. Those without a response are in none."""

    def rows(self, data_rank: int) -> list[int]:
        """Rows that a data-parallel rank trains, ascending."""
        return sorted(row for plan in self.mini_batches for micro in plan[data_rank] for row in micro)

    def rows_by_rank(self) -> list[list[int]]:
        """[data-parallel rank] -> `rows`."""
        return [self.rows(rank) for rank in range(len(self.mini_batches[0]))]


def undivided(spec: RLJobSpec) -> RLJobSpec:
    """For a step that is measured only: in one mini-batch."""
    return spec.model_copy(update={"train": spec.train.model_copy(update={"mini_batches": 1})})


def plan_step(
    columns: Columns, spec: RLJobSpec, layout: Layout, pairs: bool = False, with_last_token: bool = False
) -> StepPlan:
    """Mini-batches of whole groups, none of them empty; each spread over ranks and micro-batches.

    A sequence takes its tokens without the last, which predicts nothing; with it, where reward models read whole sequences in the same cut.

    Args:
        pairs: the rows of a group lie behind each other in one micro-batch, as Objective.pairs says
        with_last_token: with every sequence's last token, as Objective.scores says

    Raises ValueError when no trajectory has a response, or one, or a pair, is longer than a micro-batch.
    """
    kept = np.flatnonzero(columns.response_length)
    if not len(kept):
        raise ValueError("the step has no trajectories to train on")
    with_last_token = with_last_token or any(reward.model for reward in spec.rewards)
    lengths = (columns.length - (not with_last_token)).tolist()
    groups = [list(rows) for _, rows in groupby(kept.tolist(), key=lambda row: columns.group[row])]
    count = min(spec.train.mini_batches, len(groups))
    share = [i * count // len(groups) for i in range(len(groups))]
    members = [[rows for rows, m in zip(groups, share, strict=True) if m == number] for number in range(count)]
    return StepPlan(tuple(_plan(groups, pairs, lengths, spec, layout) for groups in members))


def plan_units(units: Sequence[Sequence[int]], lengths: Sequence[int], spec: RLJobSpec, layout: Layout) -> Plan:
    """Spread rows as `plan` does; those of a unit lie behind each other. `lengths`: of the sequence of every row."""
    sizes = [sum(padded_length(lengths[row], layout) for row in unit) for unit in units]
    found = plan(sizes, spec.train.tokens_per_micro_batch, layout.alignment, layout.data, layout.micro_batch_multiple)
    return [[[row for i in micro for row in units[i]] for micro in rank] for rank in found]


def _plan(groups: list[list[int]], pairs: bool, lengths: list[int], spec: RLJobSpec, layout: Layout) -> Plan:
    if pairs:
        return plan_units(groups, lengths, spec, layout)
    alone = plan_units([[row] for group in groups for row in group], lengths, spec, layout)
    if not spec.data.image_key:
        return alone
    maximums = (spec.train.tokens_per_micro_batch // count for count in SETS_PER_MICRO_BATCH)
    units = ([unit for group in groups for unit in bounded_sets(group, lengths, most)] for most in maximums)
    plans = (plan_units(found, lengths, spec, layout) for found in units)
    return next((found for found in plans if 10 * len(found[0]) <= 11 * len(alone[0])), alone)


def bounded_sets(rows: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    """The rows in sets of at most so many tokens, or of one row."""
    found, size = [[rows[0]]], lengths[rows[0]]
    for row in rows[1:]:
        size += lengths[row]
        if size > most:
            found.append([])
            size = lengths[row]
        found[-1].append(row)
    return found


def padded_length(length: int, layout: Layout) -> int:
    """The room of a sequence in the row: context-parallel ranks take equal chunks of it. Nothing of the sequence sees what fills it up."""
    return -(-length // layout.sequence_alignment) * layout.sequence_alignment


def plan(lengths: Sequence[int], budget: int, alignment: int, ranks: int, multiple: int = 1) -> Plan:
    """Spread sequences of `lengths` tokens over as few micro-batches as the budget allows, equally many on every rank, of about equal size.

    No micro-batch has more than `budget` tokens after it was filled up to a multiple of `alignment`. Equal counts, multiples of
    `multiple`, are what the schedules and the collectives of megatron need; micro-batches without sequences are run on padding that has no weight.

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
