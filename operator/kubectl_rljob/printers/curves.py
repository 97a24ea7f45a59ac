"""Curves of the main metrics: for a terminal, or as an image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from kubectl_rljob.errors import UserError
from rljob_api.protocol import Point

CURVES: tuple[tuple[str, Callable[[Point], float | None]], ...] = (
    ("Mean reward per step", lambda p: p.reward),
    ("Loss per step", lambda p: p.loss),
    ("Seconds per step", lambda p: p.seconds),
)
"""Title and value; None: the task has no such number."""
HEIGHT, WIDTH = 14, 76
TICKS = 5
LARGEST = 1e15
"""Largest number on an axis; larger ones are left out."""


@dataclass(frozen=True)
class Curve:
    """One metric: as many values as steps, at least one."""

    title: str
    steps: Sequence[int]
    values: Sequence[float]


def screen(curves: Sequence[Curve], width: int = WIDTH) -> str:
    """All curves below each other, and the steps that they show."""
    steps = [step for curve in curves for step in curve.steps]
    parts = [plot(c.title, c.steps, c.values, min(width, WIDTH)) for c in curves]
    return "\n\n".join([*parts, f"steps {min(steps)}-{max(steps)}"])


def of_history(history: Sequence[Point]) -> list[Curve]:
    """Of the points in a status, those that every point has."""
    steps = [point.step for point in history]
    found = [(title, [value(p) for p in history]) for title, value in CURVES]
    return [Curve(title, steps, [v for v in values if v is not None]) for title, values in found if None not in values]


def of_steps(metrics: Mapping[int, Mapping[str, float]], name: str) -> Curve:
    """Of a metric, over the steps that have it."""
    found = {step: values[name] for step, values in sorted(metrics.items()) if name in values}
    return Curve(name, list(found), list(found.values()))


def plot(title: str, steps: Sequence[int], values: Sequence[float], width: int = WIDTH) -> str:
    """One curve over the steps in a frame with labelled axes."""
    points = [point for point in zip(steps, values, strict=True) if all(map(_drawable, point))]
    if not points:
        return f"{title}\n(no finite values)"
    steps, values = zip(*points, strict=True)
    import plotext  # the other verbs need not wait for it

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, HEIGHT)
    plotext.plot(steps, values, marker="braille")
    plotext.title(title)
    plotext.xticks(ticks(steps))
    return "\n".join(line.rstrip() for line in Text.from_ansi(plotext.build()).plain.rstrip().split("\n"))


def ticks(steps: Sequence[int]) -> list[int]:
    """At most TICKS of them, spread evenly, with the first and the last."""
    last = len(steps) - 1
    return sorted({steps[round(i * last / (TICKS - 1))] for i in range(TICKS)})


def image(title: str, curves: Sequence[Curve], path: Path) -> None:
    """The curves as a PNG file. Raises UserError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("-o png needs matplotlib, which is not installed", "pip install matplotlib") from error
    figure = Figure(figsize=(8, 3 * len(curves)), layout="constrained")
    figure.suptitle(title)
    for axes, curve in zip(figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0], curves, strict=True):
        axes.plot(curve.steps, curve.values)
        axes.set_ylabel(curve.title)
        axes.grid(alpha=0.3)
    axes.set_xlabel("step")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--file: cannot write {path}: {error.strerror}") from error


def _drawable(number: float) -> bool:
    return abs(number) <= LARGEST
