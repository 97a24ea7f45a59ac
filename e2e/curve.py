"""A reward curve for a terminal. Pure."""

from collections.abc import Sequence
from itertools import pairwise


def plot(values: Sequence[float], height: int = 10, width: int = 64) -> str:
    """Means of equal shares of `values`, oldest left, drawn with a labelled axis; at least one value."""
    columns = [_mean(share) for share in _shares(values, min(width, len(values)))]
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    levels = [round((v - low) / span * (height - 1)) for v in columns]
    rows = ("".join("•" if level == row else " " for level in levels) for row in range(height - 1, -1, -1))
    labels = (low + span * row / (height - 1) for row in range(height - 1, -1, -1))
    return "\n".join(f"{label:7.2f} │{row}".rstrip() for label, row in zip(labels, rows, strict=True))


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    return [values[a:b] for a, b in pairwise(bounds)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
