"""How old sampled tokens are when they are trained."""

from collections.abc import Sequence

import numpy as np

from rljob_trainer.wire.trajectory import Trajectory


def token_ages(step: int, trajectories: Sequence[Trajectory]) -> tuple[float, int]:
    """Mean and largest age of the sampled tokens: trained steps between the policy that wrote a token and the one that `step` trains."""
    segments = [s for t in trajectories for s in t.sampled_segments]
    ages = np.array([step - 1 - s.policy_step for s in segments])
    counts = np.array([len(s.tokens) for s in segments])
    return float((ages * counts).sum() / counts.sum()), int(ages.max())
