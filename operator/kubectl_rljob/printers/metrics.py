"""The numbers of the last step on one line, and the course of the reward on another."""

from collections.abc import Mapping, Sequence

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
BARS = "▁▂▃▄▅▆▇█"


def line(metrics: Mapping[str, float], history: Sequence[Point]) -> str:
    """For example `REWARD 0.61 ▲0.04   LOSS 0.0123   KL 0.0040`."""
    parts = [
        f"{label} {metrics[name]:{form}}{trend(history) if label == 'REWARD' else ''}"
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


def curve(history: Sequence[Point]) -> str:
    """For example `REWARD 0.31 ▁▂▅▇ 0.61, steps 57-120`: one bar per point, from the least to the greatest reward."""
    rewards = [point.reward for point in history]
    low, span = min(rewards), max(rewards) - min(rewards)
    bars = "".join(BARS[round((r - low) / span * (len(BARS) - 1))] if span else BARS[0] for r in rewards)
    return f"REWARD {rewards[0]:.2f} {bars} {rewards[-1]:.2f}, steps {history[0].step}-{history[-1].step}"


def _mean(points: Sequence[Point]) -> float:
    return sum(p.reward for p in points) / len(points)
