"""What every set becomes, and the file that holds it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.data.rows import Message


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
