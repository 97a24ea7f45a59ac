"""Distributes a batch from the driver to the ranks: the columns to all of them, trajectories to the ranks of the data-parallel copy that trains them.

Rank 0 alone is connected to the driver. It forwards the arrays of each part in chunks as they arrive, so that no rank ever holds more than its own
part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rljob_trainer import arrays
from rljob_trainer.arrays import Array
from rljob_trainer.batch import Batch, Columns
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import Client

CHUNK_BYTES = 4 * 2**20

Parts = Callable[[Columns], Sequence[Sequence[int]]]
"""[data-parallel rank] -> rows of the columns, ascending. Every rank computes the same."""


class Scatter:
    """Every method is collective."""

    def __init__(self, ranks: Ranks, driver: Client | None, data_rank: int, parts: Parts):
        """`driver`: on rank 0 only. `data_rank`: of this rank; ranks of the same one get the same part."""
        self._ranks, self._driver, self._parts = ranks, driver, parts
        self._data_rank, self._data_ranks = data_rank, ranks.gather(data_rank)

    def receive(self, described: dict[str, Any]) -> Batch:
        """This rank's part of the batch that the driver has just announced. `described`: the announcement (driver/channel.py), on all ranks."""
        columns = self._columns(described["columns"])
        parts = self._parts(columns)
        kinds = [*described["measured"], *arrays.KINDS]
        found = [self._part(data_rank, rows, kinds) for data_rank, rows in enumerate(parts)]
        own = found[self._data_rank]
        assert own is not None, "every rank is of one of the copies"
        rows, names = parts[self._data_rank], described["measured"]
        trajectories = arrays.trajectories_of(own, columns, rows)
        counts = columns.response_length[list(rows)].tolist()
        measured = {name: dict(zip(rows, arrays.split(own[name], counts), strict=True)) for name in names}
        return Batch(described["step"], columns, trajectories, described["metrics"], measured)

    def _columns(self, described: list[list[Any]]) -> Columns:
        found = self._driver.read(described) if self._driver else arrays.allocated(described)
        self._ranks.broadcast_arrays(found)
        return Columns(**found)

    def _part(self, data_rank: int, rows: Sequence[int], kinds: Sequence[str]) -> dict[str, Array] | None:
        """Receive the arrays of one part, in the order of `kinds`, if it is this rank's; rank 0 forwards all parts. None: another rank's part."""
        ours = self._data_rank == data_rank
        receivers = [rank for rank, found in enumerate(self._data_ranks) if rank and found == data_rank]
        if not (ours or self._driver):
            return None
        counts = np.array([*self._driver.part(rows).values()] if self._driver else [0] * len(kinds), np.int64)
        self._pass_on(counts, receivers)
        sizes = dict(zip(kinds, counts.tolist(), strict=True))
        total = arrays.nbytes(sizes)
        block = np.empty(total if ours else min(total, CHUNK_BYTES), np.uint8)
        for start in range(0, total, CHUNK_BYTES):
            size = min(CHUNK_BYTES, total - start)
            chunk = block[start : start + size] if ours else block[:size]
            if self._driver:
                self._driver.read_into(arrays.raw(chunk))
            self._pass_on(chunk, receivers)
        return arrays.cut(block, sizes) if ours else None

    def _pass_on(self, chunk: Array, receivers: Sequence[int]) -> None:
        if self._driver:
            self._ranks.send(chunk, receivers)
        else:
            self._ranks.receive(chunk)
