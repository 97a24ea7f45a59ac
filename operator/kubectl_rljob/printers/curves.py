"""The main metrics: the numbers of the last step on one line, the course of the reward or the loss on another, and curves for a terminal or
as an image.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from kubectl_rljob.errors import UserError
from kubectl_rljob.terminal import WIDEST
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
    curves = [(title, [value(p) for p in history]) for title, value in CURVES]
    return [Curve(title, steps, [v for v in values if v is not None]) for title, values in curves if None not in values]


def of_steps(metrics: Mapping[int, Mapping[str, float]], name: str) -> Curve:
    """Of a metric, over the steps that have it."""
    by_step = {step: values[name] for step, values in sorted(metrics.items()) if name in values}
    return Curve(name, list(by_step), list(by_step.values()))


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


SHOWN = (
    ("REWARD", "reward/mean", ".2f"),
    ("LOSS", "train/loss", ".4f"),
    ("KL", "train/kl", ".4f"),
    ("ENTROPY", "train/entropy", ".2f"),
    ("PERPLEXITY", "train/perplexity", ".2f"),
    ("ACCURACY", "train/accuracy", ".2f"),
    ("MARGIN", "train/margin", ".3f"),
    ("LENGTH", "response_length/mean", ".0f"),
    ("LOG-PROB DIFF", "train_rollout/log_prob_diff_mean", ".1e"),
)
"""Label, name in the metric table, format. Metrics that were not reported are left out."""

FORMATS = {"REWARD": ".2f", "LOSS": ".3f"}
"""Formats of the metric that shows a job's progress."""
TREND_POINTS = 10
LARGE = 1e6
BARS = "▁▂▃▄▅▆▇█"


def line(metrics: Mapping[str, float], history: Sequence[Point]) -> str:
    """For example `REWARD 0.61 ▲0.04   LOSS 0.0123   KL 0.0040`."""
    parts = [
        f"{label} {number(metrics[name], form)}{trend(history) if label == course(history)[0] else ''}"
        for label, name, form in SHOWN
        if name in metrics
    ]
    return "   ".join(parts)


def course(history: Sequence[Point]) -> tuple[str, list[float]]:
    """The metric that shows a job's progress: the reward of every step or, for tasks without rewards, the loss."""
    rewards = [point.reward for point in history if point.reward is not None]
    return ("REWARD", rewards) if len(rewards) == len(history) else ("LOSS", [point.loss for point in history])


def trend(history: Sequence[Point]) -> str:
    """Mean of the last points against as many before them (10, or half of a short history)."""
    label, values = course(history)
    size = min(TREND_POINTS, len(values) // 2)
    if not size:
        return ""
    change = _mean(values[-size:]) - _mean(values[-2 * size : -size])
    return f" {'▲' if change >= 0 else '▼'}{number(abs(change), FORMATS[label])}"


def curve(history: Sequence[Point], width: int = WIDEST) -> str:
    """For example `REWARD 0.31 ▁▂▅▇ 0.61, steps 57-120`: one bar for each of the last points, as many as fit the width, from the least to the
    greatest value."""
    for start in range(len(history)):
        label, values = course(history[start:])
        low, high = min(values), max(values)
        bars = "".join(BARS[_level(value, low, high)] for value in values)
        first, last = (number(value, FORMATS[label]) for value in (values[0], values[-1]))
        text = f"{label} {first} {bars} {last}, steps {history[start].step}-{history[-1].step}"
        if len(text) <= width:
            break
    return text


def number(value: float, form: str) -> str:
    """In the format, or with an exponent where that would take many columns."""
    return f"{value:{form}}" if abs(value) < LARGE else f"{value:.3g}"


def _level(value: float, low: float, high: float) -> int:
    """0 for the least, the highest bar for the greatest; a span that overflows shows nothing but 0."""
    share = (value - low) / (high - low) if high > low else 0.0
    return round(share * (len(BARS) - 1)) if math.isfinite(share) else 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
