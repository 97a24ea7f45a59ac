"""Rows of settings in which any two of them occur together: pairwise testing, and more, since a row is as long as it can be."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from trainer.megatron.config_fields import Setting

Row = list[Setting]
Possible = Callable[[Row], bool]


def rows(settings: Sequence[Setting], possible: Possible, seed: int, most: int) -> Iterator[Row]:
    """At most so many. `possible`: whether such a row can be compared; what it says may change between rows. A pair that is possible only without
    others comes in a row of its own."""
    draw = random.Random(seed)
    alone = [one for one in settings if possible([one])]
    missing = [pair for pair in combinations(range(len(settings)), 2) if _apart(*(settings[i] for i in pair))]
    draw.shuffle(missing)
    known = {str(one): i for i, one in enumerate(settings)}
    left = set(missing)
    count = 0
    for pair in missing:
        if count == most:
            return
        start = [settings[i] for i in pair]
        if pair not in left or not possible(start):
            continue
        row = grown(start, _further(start, draw.sample(alone, len(alone))), possible)
        left -= {*combinations(sorted(known[str(one)] for one in row), 2)}
        count += 1
        yield row


def _apart(some: Setting, other: Setting) -> bool:
    """Whether neither says what the other says."""
    shared = min(len(some.path), len(other.path))
    return some.path[:shared] != other.path[:shared]


def _further(row: Row, others: Row) -> Row:
    """Those of `others` that `row` and earlier ones say nothing of."""
    found: Row = []
    for one in others:
        if all(_apart(one, known) for known in (*row, *found)):
            found.append(one)
    return found


def grown(row: Row, block: Row, possible: Possible) -> Row:
    """With as much of `block` as goes together."""
    if not block or possible([*row, *block]):
        return [*row, *block]
    if len(block) == 1:
        return row
    half = len(block) // 2
    return grown(grown(row, block[:half], possible), block[half:], possible)


def smallest(row: Row, wrong: Possible) -> Row:
    """A part of it that is still wrong: again and again the last setting of the shortest beginning that is. A few questions for each."""
    needed: Row = []
    while row and not (needed and wrong(needed)):
        low, high = 1, len(row)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if wrong([*needed, *row[:middle]]) else (middle + 1, high)
        needed, row = [*needed, row[low - 1]], row[: low - 1]
    return needed
