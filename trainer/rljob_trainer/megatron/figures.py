"""From what the optimizer steps of a step measured to its metrics. Pure; the same on all ranks."""

from collections.abc import Sequence

from rljob_trainer.megatron.learner import Update
from rljob_trainer.megatron.sums import LOSS, TOKENS, Sums


def policy_figures(updates: Sequence[Update]) -> dict[str, float]:
    """Losses, norms and rates are means over the optimizer steps, the rest is per response token that was learnt from.

    An optimizer step that was skipped counts in `train/skipped` alone, unless all were.
    """
    taken = [u for u in updates if not u.skipped] or updates
    total = _sum(taken)
    means = {f"train/{name}": total.mean(column) for name, column in _TRAIN.items()}
    rollout = {f"train_rollout/{name}": total.mean(column) for name, column in _ROLLOUT.items()}
    return (
        _of_steps(taken, total)
        | means
        | rollout
        | {
            "train/policy_loss": total["policy"] / max(1.0, total[TOKENS]),
            "train/skipped": float(sum(u.skipped for u in updates)),
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


def _sum(updates: Sequence[Update]) -> Sums:
    first, *others = [u.sums for u in updates]
    return sum(others, first)


def _of_steps(updates: Sequence[Update], total: Sums) -> dict[str, float]:
    count = len(updates)
    return {
        "train/loss": total[LOSS] / count,
        "train/grad_norm": sum(u.norm for u in updates) / count,
        "train/learning_rate": sum(u.rate for u in updates) / count,
    }


def _effective(total: Sums) -> float:
    """(sum r)^2 / (n sum r^2)"""
    squares = total[TOKENS] * total["mismatch_square"]
    return total["mismatch_ratio"] ** 2 / squares if squares else 1.0
