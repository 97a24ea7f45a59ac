"""Curves of the main metrics: for a terminal, or as an image."""

from collections.abc import Callable, Sequence
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
"""Of a number on an axis; what is beyond is left out."""


def screen(history: Sequence[Point], width: int = WIDTH) -> str:
    """All curves below each other, and the steps that they show; at least one point."""
    steps = [point.step for point in history]
    parts = [plot(title, steps, values, min(width, WIDTH)) for title, values in curves(history)]
    return "\n\n".join([*parts, f"steps {history[0].step}-{history[-1].step}"])


def curves(history: Sequence[Point]) -> list[tuple[str, list[float]]]:
    """Titles and values of those that every point has."""
    found = [(title, [value(p) for p in history]) for title, value in CURVES]
    return [(title, [v for v in values if v is not None]) for title, values in found if None not in values]


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


def image(title: str, history: Sequence[Point], path: Path) -> None:
    """The same as a PNG file. Raises UserError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("-o png needs matplotlib, which is not installed", "pip install matplotlib") from error
    drawn = curves(history)
    figure = Figure(figsize=(8, 3 * len(drawn)), layout="constrained")
    figure.suptitle(title)
    for axes, (name, values) in zip(figure.subplots(len(drawn), sharex=True), drawn, strict=True):
        axes.plot([p.step for p in history], values)
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    axes.set_xlabel("step")
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--file: cannot write {path}: {error.strerror}") from error


def _drawable(number: float) -> bool:
    return abs(number) <= LARGEST
