"""Adds to a batch what models on other gangs, or a teacher in a pool, measure of it before it is trained."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rljob_trainer.wire.arrays import Array, split
from rljob_trainer.wire.batch import ROWS, SCORES, Batch

Measure = Callable[[Batch], Awaitable[Mapping[str, Array]]]
"""Measures a whole batch. The result has SCORES, [n] float64, or per-token values by name, [response tokens of the step] float32. These are in the
order of the rows, or of ROWS."""


async def measured(batch: Batch, roles: Sequence[Measure]) -> Batch:
    """The batch with the measurements of all roles, which work concurrently."""
    began = time.monotonic()
    for found in await asyncio.gather(*(role(batch) for role in roles)):
        batch = joined(batch, found)
    return replace(batch, metrics={**batch.metrics, "time/measure": time.monotonic() - began})


def joined(batch: Batch, found: Mapping[str, Array]) -> Batch:
    """The batch with one measurement: scores are added to its rewards, per-token values to `Batch.measured`."""
    columns = batch.columns.scored(found[SCORES]) if SCORES in found else batch.columns
    rows = found.get(ROWS, np.arange(len(columns))).tolist()
    counts = columns.response_length[rows].tolist()
    nothing = dict.fromkeys(range(len(columns)), np.zeros(0, np.float32))
    tokens = {
        name: nothing | dict(zip(rows, split(values, counts), strict=True))
        for name, values in found.items()
        if name not in (SCORES, ROWS)
    }
    return replace(batch, columns=columns, measured={**batch.measured, **tokens})
