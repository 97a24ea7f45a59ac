"""Curves of the main metrics: for a terminal, or as an image."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from kubectl_rljob.errors import UserError
from rljob_api.protocol import Point

CURVES: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("Mean reward per step", lambda p: p.reward),
    ("Loss per step", lambda p: p.loss),
    ("Seconds per step", lambda p: p.seconds),
)


def screen(history: Sequence[Point]) -> str:
    """All curves below each other, and the steps that they show; at least one point."""
    parts = [f"{title}\n{plot([value(p) for p in history])}" for title, value in CURVES]
    return "\n\n".join([*parts, f"steps {history[0].step}-{history[-1].step}"])


def plot(values: Sequence[float], height: int = 10, width: int = 64) -> str:
    """Means of equal shares of `values`, oldest left, with a labelled axis; at least one value."""
    columns = [_mean(share) for share in _shares(values, min(width, len(values)))]
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    levels = [round((v - low) / span * (height - 1)) for v in columns]
    rows = ("".join("•" if level == row else " " for level in levels) for row in range(height - 1, -1, -1))
    labels = (low + span * row / (height - 1) for row in range(height - 1, -1, -1))
    return "\n".join(f"{label:7.3g} │{row}".rstrip() for label, row in zip(labels, rows, strict=True))


def image(title: str, history: Sequence[Point], path: Path) -> None:
    """The same as a PNG file. Raises UserError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("-o png needs matplotlib, which is not installed", "pip install matplotlib") from error
    figure = Figure(figsize=(8, 3 * len(CURVES)), layout="constrained")
    figure.suptitle(title)
    for axes, (name, value) in zip(figure.subplots(len(CURVES), sharex=True), CURVES, strict=True):
        axes.plot([p.step for p in history], [value(p) for p in history])
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    axes.set_xlabel("step")
    figure.savefig(path)


def _shares(values: Sequence[float], count: int) -> list[Sequence[float]]:
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    return [values[a:b] for a, b in pairwise(bounds)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
