"""Bounds of what the clients of `task: service` may ask for. Within them the ranks only compute: torch raises for a scalar outside float32, which
would end the attempt, and the next one too, since it repeats the work."""

from rljob_trainer.wire.service import OptimStep, RefusedWork

MOST_TARGETS = 128
"""Targets at one position."""
LARGEST_NUMBER = 1e20
"""Of a scalar's magnitude: Adam's bias correction multiplies a learning rate by up to 1e16, and the product has to fit into float32."""
SMALLEST_EPSILON = 1e-30
"""Of AdamW. A smaller one rounds to 0 in float32, and a weight without a gradient becomes 0 / 0."""


def require_numbers(work: OptimStep) -> None:
    """Raises RefusedWork for the first number that AdamW does not take."""
    bounds = {
        "learning_rate": (work.learning_rate >= 0, "at least 0"),
        "beta1": (0 <= work.beta1 < 1, "at least 0 and below 1"),
        "beta2": (0 <= work.beta2 < 1, "at least 0 and below 1"),
        "eps": (work.eps >= SMALLEST_EPSILON, f"at least {SMALLEST_EPSILON:g}"),
        "weight_decay": (work.weight_decay >= 0, "at least 0"),
        "grad_clip_norm": (work.grad_clip_norm >= 0, "at least 0"),
    }
    for name, (holds, rule) in bounds.items():
        value = getattr(work, name)
        if not (holds and value <= LARGEST_NUMBER):
            raise RefusedWork(
                f"{name} is {value}, which AdamW does not take: it must be {rule}, and at most {LARGEST_NUMBER:g}"
            )
