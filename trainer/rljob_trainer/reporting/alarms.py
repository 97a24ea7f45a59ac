"""Signs that a job which runs well learns nothing."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from rljob_api.spec import RLJobSpec

log = logging.getLogger(__name__)
STEPS = 3
"""In a row, after which a sign is worth a warning."""
NEARLY_ALL = 0.95
"""Fraction of prompts."""
HELP = "see docs/troubleshooting.md, Nothing is learnt"

Metrics = Mapping[str, float]
SIGNS: dict[str, tuple[Callable[[Metrics], bool], str]] = {
    "rewards": (
        lambda m: m.get("reward/zero_std", 0.0) >= NEARLY_ALL,
        "all responses to a prompt get the same reward, for nearly all prompts (reward/zero_std), so that nothing is learnt from them",
    ),
    "gradient": (
        lambda m: m.get("train/grad_norm") == 0.0,
        "the gradient is 0 (train/grad_norm), so that nothing is learnt",
    ),
    "rate": (
        lambda m: m.get("train/learning_rate") == 0.0,
        "the learning rate is 0 (train/learning_rate), so that nothing is learnt",
    ),
}
"""By name: whether the metrics of a step show it, and what it means. Of several, the first explains the others."""


class Alarms:
    """Watches the metrics of an attempt's steps."""

    def __init__(self, spec: RLJobSpec):
        compares = spec.task == "rl" and spec.train.samples_per_prompt > 1 and not spec.algorithm.distillation
        self._signs = [name for name in SIGNS if name != "rewards" or compares]
        self._seen: Counter[str] = Counter()
        self.texts: list[str] = []
        """What has to be said after the last step."""

    def after(self, step: int, metrics: Metrics) -> None:
        """The metrics of `step`. A warning stays until its sign is gone; it is logged once."""
        before = self.texts
        for name in self._signs:
            self._seen[name] = self._seen[name] + 1 if SIGNS[name][0](metrics) else 0
        lasting = [name for name in self._signs if self._seen[name] >= STEPS][:1]
        self.texts = [f"since step {step - self._seen[name] + 1}, {SIGNS[name][1]}; {HELP}" for name in lasting]
        for text in self.texts:
            if text not in before:
                log.warning("%s", text)
