"""Adds to a batch what models on other gangs, or a teacher in a pool, measure of it before it is trained."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from rljob_trainer.arrays import Array, split
from rljob_trainer.batch import SCORES, Batch

Measure = Callable[[Batch], Awaitable[Mapping[str, Array]]]
"""Measures a whole batch. The result has SCORES, [n] float64, or per-token values by name, [response tokens of the step] float32."""


async def measured(batch: Batch, roles: Sequence[Measure]) -> Batch:
    """The batch with the measurements of all roles, which work concurrently."""
    began = time.monotonic()
    for found in await asyncio.gather(*(role(batch) for role in roles)):
        batch = joined(batch, found)
    return replace(batch, metrics={**batch.metrics, "time/measure": time.monotonic() - began})


def joined(batch: Batch, found: Mapping[str, Array]) -> Batch:
    """The batch with one measurement: scores are added to its rewards, per-token values to `Batch.measured`."""
    columns, counts = batch.columns, batch.columns.response_length.tolist()
    columns = columns.scored(found[SCORES]) if SCORES in found else columns
    tokens = {name: dict(enumerate(split(values, counts))) for name, values in found.items() if name != SCORES}
    return replace(batch, columns=columns, measured={**batch.measured, **tokens})
