"""From what the optimizer steps of a step measured to its metrics. Pure; the same on all ranks."""

import math
from collections.abc import Sequence

from rljob_trainer.megatron.learner import Update
from rljob_trainer.megatron.sums import LOSS, TOKENS, Sums


def policy_figures(updates: Sequence[Update]) -> dict[str, float]:
    """Of the optimizer steps, and per response token that was learnt from."""
    total = sums_of(updates)
    means = {f"train/{name}": total.mean(column) for name, column in _TRAIN.items()}
    rollout = {f"train_rollout/{name}": total.mean(column) for name, column in _ROLLOUT.items()}
    return (
        of_steps("train", updates)
        | means
        | rollout
        | {
            "train/policy_loss": total.mean("policy"),
            "train_rollout/log_prob_diff_max": total.worst("difference"),
            "train_rollout/effective_sample_size": _effective(total),
        }
    )


_TRAIN = {
    "kl": "kl",
    "entropy": "entropy",
    "policy_kl": "change",
    "clip_fraction": "clipped",
    "ratio_mean": "ratio",
    "rejected": "rejected",
}
_ROLLOUT = {
    "log_prob_diff_mean": "difference",
    "kl": "mismatch_kl",
    "ratio_mean": "mismatch_ratio",
    "weight_mean": "weight",
}


def sums_of(updates: Sequence[Update]) -> Sums:
    """Of the optimizer steps that were taken; of all when none was."""
    first, *others = [u.sums for u in _taken(updates)]
    return sum(others, first)


def of_steps(what: str, updates: Sequence[Update]) -> dict[str, float]:
    """Means over the optimizer steps of a model. One that was skipped counts in `skipped` alone, unless all were."""
    chosen = _taken(updates)
    return {
        f"{what}/loss": sums_of(updates)[LOSS] / len(chosen),
        f"{what}/grad_norm": sum(u.norm for u in chosen) / len(chosen),
        f"{what}/learning_rate": sum(u.rate for u in chosen) / len(chosen),
        f"{what}/skipped": float(sum(u.skipped for u in updates)),
    }


def _taken(updates: Sequence[Update]) -> Sequence[Update]:
    return [u for u in updates if not u.skipped] or updates


def _effective(total: Sums) -> float:
    """(sum r)^2 / (n sum r^2)"""
    squares = total[TOKENS] * total["mismatch_square"]
    return total["mismatch_ratio"] ** 2 / squares if squares else math.nan
