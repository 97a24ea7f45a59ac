"""Additions of two two-digit numbers: `data arithmetic`, and the data of examples/arithmetic."""

import random
from itertools import combinations_with_replacement

from rljob_trainer.conversion.problems import Problem

TERMS = range(10, 100)
HELD_OUT_PAIRS = 256


def split_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """All 8100 problems as (train, held out), each in random order. a+b and b+a are on the same side: one gives the other away."""
    order = random.Random(seed)
    pairs = list(combinations_with_replacement(TERMS, 2))
    order.shuffle(pairs)
    held_out, train = pairs[:HELD_OUT_PAIRS], pairs[HELD_OUT_PAIRS:]
    return _both_orders(train, order), _both_orders(held_out, order)


def _both_orders(pairs: list[tuple[int, int]], order: random.Random) -> list[Problem]:
    """The problems a+b and b+a of every pair, shuffled."""
    sums = sorted({(a, b) for pair in pairs for a, b in (pair, pair[::-1])})
    order.shuffle(sums)
    return [Problem(f"{a}+{b}=", str(a + b), "arithmetic") for a, b in sums]
