"""metrics.jsonl: every metric at full precision, one object per line; what a resumed run continues."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path


class MetricsLog:
    """Lines `{"step": 3, "train/loss": ...}`, in the order they were measured; several lines may belong to one step."""

    def __init__(self, file: Path, start: int):
        """Drops lines of steps after `start`, and what a killed process or a machine without power left half written.

        By a new file in the old one's place: an attempt that was partitioned away and still runs writes to the old one.
        """
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".tmp")
        scratch.write_text("".join(line for line, record in self._records() if record["step"] <= start))
        self._stream = scratch.open("a", buffering=1)
        scratch.replace(file)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """`repr` of a float is exact, so bit-equal losses are equal lines."""
        self._stream.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self) -> None:
        self._stream.close()

    def by_step(self) -> dict[int, dict[str, float]]:
        """All metrics of each step, steps ascending."""
        merged: dict[int, dict[str, float]] = {}
        for _, record in self._records():
            merged.setdefault(record["step"], {}).update({k: v for k, v in record.items() if k != "step"})
        return dict(sorted(merged.items()))

    def _records(self) -> Iterator[tuple[str, dict]]:
        if not self._file.exists():
            return
        for line in self._file.read_text().splitlines(keepends=True):
            if record := _parsed(line):
                yield line, record


def _parsed(line: str) -> dict | None:
    """None for what is not a whole record."""
    try:
        return json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
