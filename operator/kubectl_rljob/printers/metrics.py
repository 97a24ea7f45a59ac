"""The numbers of the last step on one line, and the course of the reward on another."""

import math
from collections.abc import Mapping, Sequence

from kubectl_rljob.terminal import WIDEST
from rljob_api.protocol import Point

SHOWN = (
    ("REWARD", "reward/mean", ".2f"),
    ("LOSS", "train/loss", ".4f"),
    ("KL", "train/kl", ".4f"),
    ("ENTROPY", "train/entropy", ".2f"),
    ("LENGTH", "response_length/mean", ".0f"),
    ("LOG-PROB DIFF", "train_rollout/log_prob_diff_mean", ".1e"),
)
"""Label, name in the metric table, format. Metrics that were not reported are left out."""

TREND_POINTS = 10
LARGE = 1e6
BARS = "▁▂▃▄▅▆▇█"
FRAME = 42
"""Columns that a curve leaves for what stands around it."""


def line(metrics: Mapping[str, float], history: Sequence[Point]) -> str:
    """For example `REWARD 0.61 ▲0.04   LOSS 0.0123   KL 0.0040`."""
    parts = [
        f"{label} {_number(metrics[name], form)}{trend(history) if label == 'REWARD' else ''}"
        for label, name, form in SHOWN
        if name in metrics
    ]
    return "   ".join(parts)


def trend(history: Sequence[Point]) -> str:
    """Mean reward of the last points against as many before them (10, or half of a short history)."""
    size = min(TREND_POINTS, len(history) // 2)
    if not size:
        return ""
    change = _mean(history[-size:]) - _mean(history[-2 * size : -size])
    return f" {'▲' if change >= 0 else '▼'}{abs(change):.2f}"


def curve(history: Sequence[Point], width: int = WIDEST) -> str:
    """For example `REWARD 0.31 ▁▂▅▇ 0.61, steps 57-120`: one bar per point, from the least to the greatest reward."""
    history = history[-max(1, width - FRAME) :]
    rewards = [point.reward for point in history]
    low, high = min(rewards), max(rewards)
    bars = "".join(BARS[_level(r, low, high)] for r in rewards)
    return f"REWARD {rewards[0]:.2f} {bars} {rewards[-1]:.2f}, steps {history[0].step}-{history[-1].step}"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if abs(value) < LARGE else f"{value:.3g}"


def _level(reward: float, low: float, high: float) -> int:
    """0 for the least, the highest bar for the greatest; a span that overflows shows nothing but 0."""
    share = (reward - low) / (high - low) if high > low else 0.0
    return round(share * (len(BARS) - 1)) if math.isfinite(share) else 0


def _mean(points: Sequence[Point]) -> float:
    return sum(p.reward for p in points) / len(points)
