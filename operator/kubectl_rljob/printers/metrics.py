"""The numbers of the last step on one line, and the course of the reward, or of the loss where there is none, on another."""

import math
from collections.abc import Mapping, Sequence

from kubectl_rljob.terminal import WIDEST
from rljob_api.protocol import Point

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
