"""What a run directory shows, as values of JSON. Jobs write the files, and may write anything: sizes are bounded, and texts stay texts."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rljob_api import names

MOST_BYTES = 128 << 20
"""Of a file that is read."""
MOST_POINTS = 2000
"""Steps of a curve; of longer runs every n-th, and the last."""


def _finite(kind: type[int] | type[float], text: str) -> float | None:
    return kind(text) if math.isfinite(float(text)) else None


def _null(_: str) -> None:
    pass


DECODER = json.JSONDecoder(parse_float=partial(_finite, float), parse_int=partial(_finite, int), parse_constant=_null)
"""A number that is none of JSON, or beyond the browser's, is null."""
MOST_NAMED = 3
"""Other directories that are named."""
STEP = re.compile(r"step_([0-9]{1,12})\.jsonl")
PNG = b"\x89PNG\r\n\x1a\n"


class UnreadableRun(Exception):
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
        """Its name, and the steps that have samples and spans, the newest last."""
        samples, spans = (_steps(file(self.root, 0).parent) for file in (names.samples_file, names.spans_file))
        return {"name": self.root.name or str(self.root), "path": str(self.root), "samples": samples, "spans": spans}

    def metrics(self) -> dict[str, Any]:
        """`steps`, and for each name the values at these steps; null where there is none. Raises UnreadableRun."""
        steps: dict[int, dict[str, float]] = {}
        for record in _records(names.metrics_file(self.root)):
            step = record.get("step")
            if isinstance(step, int) and not isinstance(step, bool):
                steps.setdefault(step, {}).update({k: v for k, v in record.items() if k != "step" and _number(v)})
        chosen = _thinned(sorted(steps))
        known = sorted({name for step in chosen for name in steps[step]})
        return {"steps": chosen, "values": {name: [steps[step].get(name) for step in chosen] for name in known}}

    def samples(self, step: int) -> list[Mapping[str, Any]]:
        """Of a step, as docs/data-formats.md says. Raises UnreadableRun."""
        return list(_records(names.samples_file(self.root, step)))

    def spans(self, step: int) -> list[Mapping[str, Any]]:
        """Of a step, as OTLP's requests to export traces. Raises UnreadableRun."""
        return list(_records(names.spans_file(self.root, step)))

    def image(self, step: int, number: int) -> bytes:
        """A PNG file. Raises UnreadableRun."""
        file = names.sample_image(self.root, step, number)
        content = _content(file)
        if not content.startswith(PNG):
            raise UnreadableRun(f"{file.name} is no image")
        return content


def _steps(directory: Path) -> list[int]:
    """Those that have a file in it."""
    matches = (STEP.fullmatch(file.name) for file in directory.glob("step_*.jsonl"))
    return sorted(int(match[1]) for match in matches if match)


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Lines that hold an object; what a killed process wrote half is none."""
    for line in _content(file).decode(errors="replace").split("\n"):  # texts may hold what Unicode calls line ends
        try:
            record = DECODER.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _content(file: Path) -> bytes:
    """Raises UnreadableRun."""
    try:
        return _bounded(file)
    except OSError as error:
        raise UnreadableRun(f"{file.name} cannot be read: {error.strerror or error}") from error


def _bounded(file: Path) -> bytes:
    """Does not wait for the writer of a pipe. Raises OSError or UnreadableRun."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableRun(f"{file.name} is no regular file")
        if status.st_size > MOST_BYTES:
            raise UnreadableRun(f"{file.name} has {status.st_size} bytes, and at most {MOST_BYTES} are read")
        return source.read(MOST_BYTES)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _thinned(steps: list[int]) -> list[int]:
    apart = -(-len(steps) // MOST_POINTS) or 1
    return sorted({*steps[::apart], *steps[-1:]})
