"""Advantages of a whole step, on every rank alike: CPU, float64, before anything is cut."""

import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.megatron.step import Step
from rljob_trainer.objectives.advantages import ADVANTAGES, Advantages, Episodes
from rljob_trainer.objectives.kl import token_rewards


def penalises_reward(spec: RLJobSpec) -> bool:
    """The divergence is taken from rewards, so that old and reference log-probabilities are needed before the first update."""
    kl = spec.algorithm.kl
    return kl.coefficient > 0 and kl.where == "reward"


def compute_advantages(step: Step, spec: RLJobSpec, kl_coefficient: float) -> tuple[Advantages, Episodes]:
    """What every response token of the step is worth, and what that was made of. Collective where it takes what ranks measured."""
    baselines = [s.baseline_reward for s in step.samples]
    mask = step.padded([torch.tensor(s.response_mask) for s in step.samples])
    episodes = Episodes(
        rewards=torch.tensor([s.reward for s in step.samples], dtype=torch.float64),
        groups=torch.tensor([s.group for s in step.samples]),
        mask=mask,
        token_rewards=_penalties(step, spec, kl_coefficient) if penalises_reward(spec) else torch.zeros_like(mask),
        values=step.padded(step.gather("values")) if spec.critic else None,
        baselines=torch.tensor(baselines, dtype=torch.float64) if None not in baselines else None,
    )
    return ADVANTAGES[spec.algorithm.advantage](episodes, spec.algorithm), episodes


def _penalties(step: Step, spec: RLJobSpec, coefficient: float) -> torch.Tensor:
    old = "rollout_log_probs" if spec.algorithm.rollout_correction.bypass else "old_log_probs"
    ours, reference = (step.padded(step.gather(name)) for name in (old, "reference_log_probs"))
    return token_rewards(spec.algorithm.kl.estimator, coefficient, ours, reference)
