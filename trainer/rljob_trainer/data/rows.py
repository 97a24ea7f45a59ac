"""Parquet files to rows. Everything a user can get wrong here names the file's place in the spec."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_api.spec.model import DataSpec
from rljob_trainer.failure import ConfigurationError


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt as it stands in a file."""

    prompt: str
    answer: str
    data_source: str


def read_rows(spec: DataSpec, split: str) -> list[Row]:
    """All rows of the files under spec.data.`split` (train or validation), in the order of the files.

    Raises ConfigurationError, naming spec.data.`split`[i], for a file that is missing, unreadable, lacks a column or holds no row.
    """
    files: Sequence[str] = getattr(spec, split)
    rows: list[Row] = []
    for i, path in enumerate(files):
        rows += _read_file(spec, f"spec.data.{split}[{i}]", path)
    return rows


def _read_file(spec: DataSpec, field: str, path: str) -> list[Row]:
    columns = (spec.prompt_key, spec.answer_key, spec.data_source_key)
    if not Path(path).is_file():
        raise ConfigurationError(
            field,
            path,
            "there is no such file in the trainer pod",
            "correct the path, or mount the volume that holds it in spec.volumes",
        )
    try:
        held = pq.read_schema(path).names
        _require_columns(field, path, columns, held)
        table = pq.read_table(path, columns=list(dict.fromkeys(columns)))
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigurationError(
            field, path, f"cannot be read as Parquet: {error}", "write the file again as Parquet"
        ) from error
    if table.num_rows == 0:
        raise ConfigurationError(field, path, "holds no row", "leave the file out or fill it")
    return [
        Row(_text(field, path, spec.prompt_key, p), str(a), str(s))
        for p, a, s in zip(*(table[c].to_pylist() for c in columns), strict=True)
    ]


def _require_columns(field: str, path: str, wanted: Sequence[str], held: Sequence[str]) -> None:
    keys = ("promptKey", "answerKey", "dataSourceKey")
    for key, column in zip(keys, wanted, strict=True):
        if column not in held:
            rule = f"has no column {column!r}; its columns are {', '.join(held) or 'none'}"
            raise ConfigurationError(field, path, rule, f"set spec.data.{key} to one of them")


def _text(field: str, path: str, column: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ConfigurationError(
        field, path, f"column {column!r} holds {value!r}, which is not a text", "write prompts as non-empty strings"
    )
