"""Distributes a batch from the driver to the ranks: the columns to all of them, trajectories to the ranks of the data-parallel copy that trains them.
What they measured of it, for models on other gangs, goes back the same way.

Rank 0 alone is connected to the driver. It sends each part once, to the first rank of the copy, which shares it with the others of the copy while
rank 0 continues with the next part. All of this happens in chunks, so that no rank ever holds more than its own part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from rljob_trainer.rank.driver_client import Client
from rljob_trainer.wire import arrays
from rljob_trainer.wire.arrays import Stream
from rljob_trainer.wire.batch import ROWS, Array, Batch, Columns
from rljob_trainer.wire.calls import Announcement
from rljob_trainer.wire.collective import Ranks

CHUNK_BYTES = 4 * 2**20

Parts = Callable[[Columns], Sequence[Sequence[int]]]
"""[data-parallel rank] -> rows of the columns, ascending. Every rank computes the same."""


class ScatterModel(Protocol):
    """What has to be known of the model that the ranks hold."""

    @property
    def data_rank(self) -> int:
        """The data-parallel copy that this rank belongs to."""
        ...

    def share(self, block: Array) -> None:
        """Overwrite the block with that of the copy's first rank. Collective over the copy."""
        ...


class Scatter:
    """Every public method is collective."""

    def __init__(self, ranks: Ranks, driver: Client | None, model: ScatterModel, parts: Parts):
        """`driver`: on rank 0 only."""
        self._ranks, self._driver, self._model, self._parts = ranks, driver, model, parts
        copies = ranks.gather(model.data_rank)
        self._leaders = [copies.index(copy) for copy in range(max(copies) + 1)]

    def receive(self, described: Announcement) -> Batch:
        """This rank's part of the batch that the driver has just announced. `described`: on all ranks."""
        columns = self._columns(described["columns"])
        parts, names = self._parts(columns), described["measured"]
        rows = parts[self._model.data_rank]
        kinds = [*names, *(arrays.KINDS if described["trajectories"] else ())]
        own = self._own(rows, kinds)
        if self._driver:
            for others, leader in zip(parts[1:], self._leaders[1:], strict=True):
                self._forward(self._driver, others, leader)
        counts = columns.response_length[list(rows)].tolist()
        measured = {name: dict(zip(rows, arrays.split(own[name], counts), strict=True)) for name in names}
        trajectories = arrays.trajectories_of(own, columns, rows) if described["trajectories"] else {}
        return Batch(described["step"], columns, trajectories, described["metrics"], measured)

    def collect(self, columns: Columns, values: Mapping[str, Mapping[int, Array]]) -> Stream | None:
        """The way back: per-token values of all rows, from the first rank of each copy to the driver.

        On rank 0 the result has to be sent: the arrays [response tokens of the step] float32, in the order of ROWS, which comes before them. Rank 0
        receives them in chunks meanwhile. None on other ranks.

        Args:
            values: [name] -> [row] -> [response tokens], of this rank's part of `columns`
        """
        parts = self._parts(columns)
        if self._driver:
            order = np.array([row for rows in parts for row in rows], np.int32)
            total = int(columns.response_length[order].sum())
            described = [*arrays.described({ROWS: order}), *([name, "<f4", total] for name in values)]
            return Stream(described, chain([order], self._collected(columns, parts, values)))
        if self._ranks.rank in self._leaders:
            for of_rows in values.values():
                for row in parts[self._model.data_rank]:
                    self._ranks.send(np.ascontiguousarray(of_rows[row], np.float32), 0).wait()
        return None

    def _collected(
        self, columns: Columns, parts: Sequence[Sequence[int]], values: Mapping[str, Mapping[int, Array]]
    ) -> Iterator[Array]:
        for of_rows in values.values():
            for copy, (rows, leader) in enumerate(zip(parts, self._leaders, strict=True)):
                for row in rows:
                    if copy == self._model.data_rank:
                        yield np.ascontiguousarray(of_rows[row], np.float32)
                    else:
                        received = np.empty(columns.response_length[row], np.float32)
                        self._ranks.receive(received, leader)
                        yield received

    def _columns(self, described: list[list[Any]]) -> Columns:
        columns = self._driver.read(described) if self._driver else arrays.allocated(described)
        self._ranks.broadcast_arrays(columns)
        return Columns(**columns)

    def _own(self, rows: Sequence[int], kinds: Sequence[str]) -> dict[str, Array]:
        """The arrays of this rank's part, in the order of `kinds`."""
        counts = np.zeros(len(kinds), np.int64)
        if self._driver:
            counts[:] = [*self._driver.part(rows).values()]
            self._model.share(counts)
        else:
            self._take(counts)
        sizes = dict(zip(kinds, counts.tolist(), strict=True))
        block = np.empty(arrays.nbytes(sizes), np.uint8)
        for start in range(0, len(block), CHUNK_BYTES):
            self._take(block[start : start + CHUNK_BYTES])
        return arrays.cut(block, sizes)

    def _take(self, block: Array) -> None:
        """Fill the block with the next bytes of this rank's part."""
        if self._driver:
            self._driver.read_into(arrays.raw(block))
        elif self._ranks.rank in self._leaders:
            self._ranks.receive(block)
        self._model.share(block)

    def _forward(self, driver: Client, rows: Sequence[int], leader: int) -> None:
        """Send the part of another copy to its first rank. Each chunk is read while the one before it is sent."""
        sizes = driver.part(rows)
        sent = self._ranks.send(np.array([*sizes.values()], np.int64), leader)
        buffers, total = np.empty((2, CHUNK_BYTES), np.uint8), arrays.nbytes(sizes)
        for number, start in enumerate(range(0, total, CHUNK_BYTES)):
            chunk = buffers[number % 2][: total - start]
            driver.read_into(arrays.raw(chunk))
            sent.wait()
            sent = self._ranks.send(chunk, leader)
        sent.wait()
