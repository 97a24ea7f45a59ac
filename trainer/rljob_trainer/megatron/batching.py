"""Assigns trajectories to data-parallel ranks and micro-batches. Pure arithmetic on lengths, without torch, so that every rank computes the same
plan."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Columns

Plan = list[list[list[int]]]
"""[data-parallel rank][micro-batch] -> indices of sequences, ascending. A micro-batch may be empty."""

SETS_PER_MICRO_BATCH = (2, 4, 8)
"""Samples with the same images are kept together in sets, because within a micro-batch their images pass through the vision tower once, which is
most of what such a sample costs. A set has at most 1 / 2, 1 / 4 or 1 / 8 of the tokens of a micro-batch: the first of these with which at most a
tenth more micro-batches are needed than without sets."""
MANY = 16
"""With this many sequences in a micro-batch, the lower bound by their number adds little to the one by their tokens."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as mini-batches (optimizer steps), each distributed over ranks and micro-batches."""

    mini_batches: tuple[Plan, ...]
    """Of rows of the step's columns. Rows without a response are in none."""

    def rows(self, data_rank: int) -> list[int]:
        """Rows that a data-parallel rank trains, ascending."""
        return sorted(row for plan in self.mini_batches for micro in plan[data_rank] for row in micro)

    def rows_by_rank(self) -> list[list[int]]:
        """[data-parallel rank] -> `rows`."""
        return [self.rows(rank) for rank in range(len(self.mini_batches[0]))]


def undivided(spec: RLJobSpec) -> RLJobSpec:
    """The spec with one mini-batch per step, for a step that is measured only."""
    return spec.model_copy(update={"train": spec.train.model_copy(update={"mini_batches": 1})})


def plan_step(
    columns: Columns, spec: RLJobSpec, layout: Layout, pairs: bool = False, with_last_token: bool = False
) -> StepPlan:
    """Plan a step: non-empty mini-batches of whole groups.

    A sequence counts without its last token, which predicts nothing, unless reward models read whole sequences with the same plan.

    Args:
        pairs: keep the rows of a group adjacent in one micro-batch, as Objective.pairs demands
        with_last_token: count every sequence with its last token, as Objective.scores demands

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
    """Like `plan`, but keeps the rows of a unit adjacent in one micro-batch. `lengths`: [row] -> tokens of its sequence."""
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
    """Split rows into consecutive sets of at most `most` tokens, or of one longer row."""
    found, size = [[rows[0]]], lengths[rows[0]]
    for row in rows[1:]:
        size += lengths[row]
        if size > most:
            found.append([])
            size = lengths[row]
        found[-1].append(row)
    return found


def padded_length(length: int, layout: Layout) -> int:
    """`length` with the padding by which context-parallel ranks get equal chunks of the sequence. The padding follows its last token."""
    return -(-length // layout.sequence_alignment) * layout.sequence_alignment


def plan(lengths: Sequence[int], budget: int, alignment: int, ranks: int, multiple: int = 1) -> Plan:
    """Distribute sequences over as few micro-batches as the budget allows, equally many on every rank, and of about equal size.

    No micro-batch has more than `budget` tokens after padding to a multiple of `alignment`. Megatron's schedules and collectives need the same
    number of micro-batches on every rank, a multiple of `multiple`; a micro-batch without sequences consists of padding, whose loss has no weight.

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
    """A lower bound of the number of micro-batches: by the tokens, and since at most k sequences longer than room / (k + 1) fit into one."""
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
