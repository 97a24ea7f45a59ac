"""What is measured on held-out data while a run continues, as the job writes it into metrics.jsonl."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api.metrics import EVALUATION_METRICS

MEASURED = {"evaluation/reward": "held-out reward", "evaluation/loss": "held-out loss"}


class Evaluations:
    """Those that are written from now on."""

    def __init__(self, file: Path):
        self._file, self._read = file, _size(file)

    def new(self) -> Iterator[str]:
        """A line for each since the last call. What an attempt has dropped, because it does those steps again, was said before."""
        size = _size(self._file)
        if size < self._read:
            self._read = size
        if size == self._read:
            return
        with self._file.open("rb") as source:
            source.seek(self._read)
            whole, newline, _ = source.read(size - self._read).rpartition(b"\n")
        self._read += len(whole + newline)
        for line in whole.splitlines():
            yield from _said(line)


def _said(line: bytes) -> Iterator[str]:
    try:
        record = json.loads(line)
    except ValueError:  # an attempt has written the file anew in between
        return
    parts = [f"{text} {record[name]:.3f}" for name, text in MEASURED.items() if name in record]
    if parts:
        yield f"step {record['step']}: {', '.join([*parts, *_own(record)])}"


def _own(record: Mapping[str, float]) -> list[str]:
    """Metrics of the job's own reward functions."""
    return [
        f"{name.removeprefix(EVALUATION_METRICS)} {value:.3f}"
        for name, value in record.items()
        if name.startswith(EVALUATION_METRICS)
    ]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
