"""Assigns trajectories to data-parallel ranks and micro-batches. Pure arithmetic on lengths, without torch, so that every rank computes the same
plan."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import NOMINAL, PassCost
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Columns

PackingPlan = list[list[list[int]]]
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

    mini_batches: tuple[PackingPlan, ...]
    """Of rows of the step's columns. Rows without a response are in none."""

    def rows(self, data_rank: int) -> list[int]:
        """Rows that a data-parallel rank trains, ascending."""
        return sorted(row for plan in self.mini_batches for micro in plan[data_rank] for row in micro)

    def rows_by_rank(self) -> list[list[int]]:
        """[data-parallel rank] -> `rows`."""
        return [self.rows(rank) for rank in range(len(self.mini_batches[0]))]


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the steps of one model. All of its ranks have an equal one."""

    spec: RLJobSpec
    layout: Layout
    pairs: bool = False
    """Keep the rows of a group adjacent in one micro-batch, as Objective.pairs demands."""
    with_last_token: bool = False
    """Count every sequence with its last token, as Objective.scores demands."""
    work: PassCost = NOMINAL.work
    """Of the model."""

    def plan(self, columns: Columns) -> StepPlan:
        """Plan a step: non-empty mini-batches of whole groups.

        A sequence counts without its last token, which predicts nothing, unless reward models read whole sequences with the same plan.

        Raises ValueError when no trajectory has a response, or one, or a pair, is longer than a micro-batch.
        """
        kept = np.flatnonzero(columns.response_length)
        if not len(kept):
            raise ValueError("the step has no trajectories to train on")
        with_last_token = self.with_last_token or any(reward.model for reward in self.spec.rewards)
        lengths = (columns.length - (not with_last_token)).tolist()
        groups = [list(rows) for _, rows in groupby(kept.tolist(), key=lambda row: columns.group[row])]
        count = min(self.spec.train.mini_batches, len(groups))
        share = [i * count // len(groups) for i in range(len(groups))]
        members = [[rows for rows, m in zip(groups, share, strict=True) if m == number] for number in range(count)]
        return StepPlan(tuple(self._mini_batch(groups, lengths) for groups in members))

    def parts(self, columns: Columns) -> list[list[int]]:
        """[data-parallel rank] -> rows of the batch that it needs, ascending."""
        return self.plan(columns).rows_by_rank()

    @property
    def undivided(self) -> "Planner":
        """The planner of steps that are measured only: with one mini-batch each."""
        train = self.spec.train.model_copy(update={"mini_batches": 1})
        return replace(self, spec=self.spec.model_copy(update={"train": train}))

    def plan_units(self, units: Sequence[Sequence[int]], lengths: Sequence[int]) -> PackingPlan:
        """Like `plan` below, but keeps the rows of a unit adjacent in one micro-batch. `lengths`: [row] -> tokens of its sequence."""
        layout, budget = self.layout, self.spec.train.tokens_per_micro_batch
        sizes = [sum(padded_length(lengths[row], layout) for row in unit) for unit in units]
        costs = [sum(self.work.of(lengths[row]) for row in unit) for unit in units]
        planned = plan(sizes, costs, budget, layout.alignment, layout.data, layout.micro_batch_multiple)
        return [[[row for i in micro for row in units[i]] for micro in rank] for rank in planned]

    def _mini_batch(self, groups: list[list[int]], lengths: list[int]) -> PackingPlan:
        if self.pairs:
            return self.plan_units(groups, lengths)
        alone = self.plan_units([[row] for group in groups for row in group], lengths)
        if not self.spec.data.image_key:
            return alone
        maximums = (self.spec.train.tokens_per_micro_batch // count for count in SETS_PER_MICRO_BATCH)
        units = ([unit for group in groups for unit in bounded_sets(group, lengths, most)] for most in maximums)
        plans = (self.plan_units(sets, lengths) for sets in units)
        return next((in_sets for in_sets in plans if 10 * len(in_sets[0]) <= 11 * len(alone[0])), alone)


def bounded_sets(rows: Sequence[int], lengths: Sequence[int], most: int) -> list[list[int]]:
    """Split rows into consecutive sets of at most `most` tokens, or of one longer row."""
    sets, size = [[rows[0]]], lengths[rows[0]]
    for row in rows[1:]:
        size += lengths[row]
        if size > most:
            sets.append([])
            size = lengths[row]
        sets[-1].append(row)
    return sets


def padded_length(length: int, layout: Layout) -> int:
    """`length` with the padding by which context-parallel ranks get equal chunks of the sequence. The padding follows its last token."""
    return -(-length // layout.sequence_alignment) * layout.sequence_alignment


def plan(
    lengths: Sequence[int], costs: Sequence[int], budget: int, alignment: int, ranks: int, multiple: int = 1
) -> PackingPlan:
    """Distribute sequences over as few micro-batches as the budget allows, equally many on every rank, and of about equal size.

    Micro-batches of equal size differ in cost, since the cost of attention grows with the square of a sequence's length. So they are dealt out by
    cost: the k-th micro-batches of all ranks cost about the same, because ranks wait for each other in every layer with experts, and so do the
    ranks' sums, because they wait for each other before an optimizer step. `costs`: of each sequence, in any unit.

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
    batches = _spread(lengths, count, room)
    while batches is None:
        count += group
        batches = _spread(lengths, count, room)
    return _dealt(batches, costs, ranks)


def _dealt(batches: list[list[int]], costs: Sequence[int], ranks: int) -> PackingPlan:
    """The costliest first, in snake order: each round begins with the rank at which the last one ended."""
    order = sorted(batches, key=lambda batch: -sum(costs[i] for i in batch))
    rounds = [order[start : start + ranks] for start in range(0, len(order), ranks)]
    rounds = [batches[::-1] if number % 2 else batches for number, batches in enumerate(rounds)]
    return [[batches[rank] for batches in rounds] for rank in range(ranks)]


def _fewest(lengths: Sequence[int], room: int) -> int:
    """A lower bound of the number of micro-batches: by the tokens, and since at most k sequences longer than room / (k + 1) fit into one."""
    sizes = np.asarray(lengths, np.int64)
    return max(1, -(-int(sizes.sum()) // room), *(-(-int((sizes * (k + 1) > room).sum()) // k) for k in range(1, MANY)))


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
