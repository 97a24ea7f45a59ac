"""Which groups of samples a step trains on: all, or with dynamic sampling those that differ (DAPO, arXiv 2503.14476, section 3.2)."""

from collections import Counter
from collections.abc import Sequence
from itertools import batched
from typing import Literal

from rljob_api.spec import RLJobSpec
from rljob_trainer.buffer.assembly import Outcome, require_complete, require_scored
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.trajectory import Trajectory

Verdict = Literal["kept", "right", "wrong", "unjudged"]


def verdict(group: Sequence[Outcome]) -> Verdict:
    """kept: rewards differ; right, wrong: all are one reward above 0, or one of 0 or below; unjudged: fewer than two samples have one."""
    rewards = [o.result.reward for o in group if isinstance(o.result, Trajectory)]
    if len(rewards) < 2:
        return "unjudged"
    if len(set(rewards)) > 1:
        return "kept"
    return "right" if rewards[0] > 0 else "wrong"


class Selection:
    """The groups of one step, round by round. Rewards are the judges', before any penalty."""

    def __init__(self, spec: RLJobSpec):
        self._samples, self._wanted = spec.train.samples_per_prompt, spec.train.prompts_per_step
        self._dynamic = spec.algorithm.dynamic_sampling
        self._kept: list[tuple[Outcome, ...]] = []
        self._verdicts: Counter[Verdict] = Counter()
        self._rounds = 0
        self._rewards: list[float] = []
        self.failed: list[Outcome] = []
        """What could not be judged, of all rounds. Of other samples that are not trained on only the reward is remembered."""

    @property
    def generated(self) -> int:
        """Prompts so far: the position of the next one in the step."""
        return self._rounds * self._wanted

    @property
    def is_full(self) -> bool:
        return len(self._kept) >= self._wanted

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """One round. Raises as require_scored, and ConfigurationError when it was the last that may be and prompts still lack."""
        ordered = sorted(outcomes, key=lambda o: (o.group, o.sample))
        require_complete(ordered, range(self.generated, self.generated + self._wanted), self._samples)
        require_scored(ordered)
        self._rounds += 1
        self._rewards += [o.result.reward for o in ordered if isinstance(o.result, Trajectory)]
        self.failed += [o for o in ordered if isinstance(o.result, RewardFailed)]
        for group in batched(ordered, self._samples):
            found = verdict(group)
            self._verdicts[found] += 1
            if found == "kept" or not self._dynamic:
                self._kept.append(group)
        if self._dynamic and not self.is_full and self._rounds >= self._dynamic.max_rounds:
            raise self._unfilled(self._dynamic.max_rounds)

    def chosen(self) -> list[Outcome]:
        """The first promptsPerStep groups that are kept, numbered anew from 0."""
        assert self.is_full
        return [o.at(place) for place, group in enumerate(self._kept[: self._wanted]) for o in group]

    def metrics(self) -> dict[str, float]:
        """Empty without dynamic sampling."""
        if not self._dynamic:
            return {}
        fraction = {found: count / self.generated for found, count in self._verdicts.items()}
        return {
            "sampling/rounds": float(self._rounds),
            "sampling/kept": fraction.get("kept", 0.0),
            "sampling/all_right": fraction.get("right", 0.0),
            "sampling/all_wrong": fraction.get("wrong", 0.0),
            "sampling/unjudged": fraction.get("unjudged", 0.0),
            "sampling/surplus": float(len(self._kept) - self._wanted),
            "sampling/reward": sum(self._rewards) / len(self._rewards),
        }

    def _unfilled(self, rounds: int) -> ConfigurationError:
        count = self._verdicts
        rule = (
            f"after so many rounds only {count['kept']} of the {self._wanted} prompts of a step have samples with different rewards; "
            f"of {self.generated} prompts {count['right']} were all right, {count['wrong']} all wrong, "
            f"{count['unjudged']} had fewer than two judged samples"
        )
        fix = "mix in easier or harder prompts, raise samplesPerPrompt, lower promptsPerStep, or raise the rounds"
        return ConfigurationError("spec.algorithm.dynamicSampling.maxRounds", str(rounds), rule, fix)
