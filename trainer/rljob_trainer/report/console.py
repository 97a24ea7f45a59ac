"""One line per step, for people who read logs."""

from collections.abc import Mapping


def step_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """`step 120/500 | 8.4s | reward 0.610 | loss 0.0123 | ...`; a part whose metric is missing is left out."""
    parts = [f"step {step}/{steps}"]
    parts += [template.format(metrics[name]) for name, template in _PARTS if name in metrics]
    if "perf/tokens_per_s" in metrics:
        parts.append(f"{_thousands(metrics['perf/tokens_per_s'])} tok/s")
    return " | ".join(parts)


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    return f"evaluation at step {step} | reward {metrics['evaluation/reward']:.3f}"


_PARTS = (
    ("time/step", "{:.1f}s"),
    ("reward/mean", "reward {:.3f}"),
    ("train/loss", "loss {:.4f}"),
    ("train/kl", "kl {:.4f}"),
    ("train/entropy", "entropy {:.2f}"),
    ("response_length/mean", "length {:.1f}"),
    ("sampling/rounds", "rounds {:.0f}"),
    ("train_rollout/log_prob_diff_mean", "log-prob diff {:.1e}"),
)


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
