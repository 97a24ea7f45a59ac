"""What the page shows of a run directory, as JSON. Jobs write the files, and may write anything: sizes are bounded, and texts stay texts."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rljob_api import names

MOST_BYTES = 128 << 20
"""Of a file that is read."""
MOST_POINTS = 2000
"""Steps of a curve; of longer runs every n-th, and the last."""
DECODER = json.JSONDecoder(
    parse_float=lambda text: float(text) if math.isfinite(float(text)) else None,
    parse_int=lambda text: int(text) if math.isfinite(float(text)) else None,
    parse_constant=lambda text: None,
)
"""A number that is none of JSON, or beyond the browser's, is null."""
MOST_NAMED = 3
"""Other directories that are named."""
SAMPLES = re.compile(r"step_([0-9]{1,12})\.jsonl")


class Unreadable(Exception):
    """Says why there is nothing to show."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A directory `spec.checkpoint.path`."""

    root: Path

    @property
    def begun(self) -> bool:
        """Whether a job has written here; one that still loads its model has no metrics."""
        return names.metrics_file(self.root).exists() or names.fence_dir(self.root).is_dir()

    def below(self) -> list[Path]:
        """Directories in this one that hold runs, a few of them."""
        return sorted(
            islice((file.parent for file in self.root.glob(f"*/{names.metrics_file(Path()).name}")), MOST_NAMED)
        )

    def described(self) -> dict[str, Any]:
        """Its name, and the steps that have samples, the newest last."""
        return {"name": self.root.name or str(self.root), "path": str(self.root), "samples": self._sampled()}

    def metrics(self) -> dict[str, Any]:
        """`steps`, and for each name the values at these steps; null where there is none. Raises Unreadable."""
        steps: dict[int, dict[str, float]] = {}
        for record in _records(names.metrics_file(self.root)):
            step = record.get("step")
            if isinstance(step, int) and not isinstance(step, bool):
                steps.setdefault(step, {}).update({k: v for k, v in record.items() if k != "step" and _number(v)})
        chosen = _thinned(sorted(steps))
        known = sorted({name for step in chosen for name in steps[step]})
        return {"steps": chosen, "values": {name: [steps[step].get(name) for step in chosen] for name in known}}

    def samples(self, step: int) -> list[Mapping[str, Any]]:
        """Of a step, as docs/data-formats.md says. Raises Unreadable."""
        return list(_records(names.samples_file(self.root, step)))

    def _sampled(self) -> list[int]:
        directory = names.samples_file(self.root, 0).parent
        found = (SAMPLES.fullmatch(file.name) for file in directory.glob("step_*.jsonl"))
        return sorted(int(match[1]) for match in found if match)


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Lines that hold an object; what a killed process wrote half is none."""
    try:
        lines = _text(file).split("\n")  # texts may hold what Unicode calls line ends
    except OSError as error:
        raise Unreadable(f"{file.name} cannot be read: {error.strerror or error}") from error
    for line in lines:
        try:
            record = DECODER.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _text(file: Path) -> str:
    """Does not wait for the writer of a pipe. Raises OSError or Unreadable."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(f"{file.name} is no regular file")
        if status.st_size > MOST_BYTES:
            raise Unreadable(f"{file.name} has {status.st_size} bytes, and at most {MOST_BYTES} are read")
        return source.read(MOST_BYTES).decode(errors="replace")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _thinned(steps: list[int]) -> list[int]:
    apart = -(-len(steps) // MOST_POINTS) or 1
    return sorted({*steps[::apart], *steps[-1:]})
