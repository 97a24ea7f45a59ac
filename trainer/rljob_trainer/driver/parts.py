"""A batch on its way out of the driver: what is said of it first, and then its trajectories in parts."""

from collections.abc import Sequence
from typing import Any

from rljob_trainer import arrays
from rljob_trainer.batch import Batch
from rljob_trainer.driver.channel import Arrays


def announced(batch: Batch, **further: Any) -> Arrays:
    """What a rank gets of a batch: its columns, and what describes them. `further`: of the answer, in addition."""
    columns = batch.columns.arrays()
    described = {"step": batch.step, "metrics": dict(batch.metrics), "columns": arrays.described(columns)}
    return Arrays({"batch": described | {"measured": list(batch.measured)} | further}, columns.values())


def part_of(batch: Batch, rows: Sequence[int]) -> Arrays:
    """What was measured of these rows, and their trajectories."""
    trajectories = [batch.trajectories[row] for row in rows]
    measured = {name: [of_row[row] for row in rows] for name, of_row in batch.measured.items()}
    counts = {name: sum(map(len, values)) for name, values in measured.items()}
    pieces = measured | arrays.rows(trajectories)
    sizes = counts | arrays.sizes(trajectories)
    return Arrays(sizes, (piece for name in sizes for piece in pieces[name]))
