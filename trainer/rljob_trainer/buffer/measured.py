"""What roles on ranks of their own say of a batch becomes a part of it, before anybody trains it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from rljob_trainer.arrays import Array, split
from rljob_trainer.batch import SCORES, Batch

Measure = Callable[[Batch], Awaitable[Mapping[str, Array]]]
"""What a role says of a whole batch, by name: SCORES, or values of tokens, [response tokens of the step] float32."""


async def measured(batch: Batch, roles: Sequence[Measure]) -> Batch:
    """With what the roles say of it, in their order."""
    began = time.monotonic()
    for found in await asyncio.gather(*(role(batch) for role in roles)):
        batch = joined(batch, found)
    return replace(batch, metrics={**batch.metrics, "time/measure": time.monotonic() - began})


def joined(batch: Batch, found: Mapping[str, Array]) -> Batch:
    """The batch with scores in its rewards, and with columns of tokens."""
    columns, counts = batch.columns, batch.columns.response_length.tolist()
    columns = columns.scored(found[SCORES]) if SCORES in found else columns
    tokens = {name: dict(enumerate(split(values, counts))) for name, values in found.items() if name != SCORES}
    return replace(batch, columns=columns, measured={**batch.measured, **tokens})
