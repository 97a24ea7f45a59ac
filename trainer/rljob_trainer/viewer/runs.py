"""What the page shows of a run directory, as JSON. Jobs write the files, and may write anything: sizes are bounded, and texts stay texts."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api import names

MOST_BYTES = 128 << 20
"""Of a file that is read."""
MOST_POINTS = 2000
"""Steps of a curve; of longer runs every n-th, and the last."""
SAMPLES = re.compile(r"step_([0-9]{1,12})\.jsonl")


class Unreadable(Exception):
    """Says why there is nothing to show."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A directory `spec.checkpoint.path`."""

    root: Path

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
        if (size := file.stat().st_size) > MOST_BYTES:
            raise Unreadable(f"{file.name} has {size} bytes, and at most {MOST_BYTES} are read")
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        raise Unreadable(f"{file.name} cannot be read: {error.strerror or error}") from error
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(steps: list[int]) -> list[int]:
    apart = -(-len(steps) // MOST_POINTS) or 1
    return sorted({*steps[::apart], *steps[-1:]})
