"""What every set becomes, and the file that holds it; and the one set that is made here, additions of two two-digit numbers."""

import random
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.data.conversations import Message


class Problem(NamedTuple):
    """One row: what the model reads, the answer that its response is compared with, and which rewards score it."""

    prompt: str | tuple[Message, ...]
    """A text that is encoded as it stands, or messages, which go through the chat template."""
    answer: str
    data_source: str


def write_problems(problems: Sequence[Problem], path: Path) -> None:
    """Write one Parquet row per problem, in columns of the names that spec.data has by default. Replaces the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    columns = {name: [getattr(problem, name) for problem in problems] for name in Problem._fields}
    pq.write_table(pa.table(columns), partial)
    partial.replace(path)


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
