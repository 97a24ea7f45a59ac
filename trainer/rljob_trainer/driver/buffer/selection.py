"""Selects the groups that a step is trained on: the first that are complete, and with dynamic sampling only those whose rewards differ (DAPO,
arXiv 2503.14476, section 3.2). Pure.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal

from rljob_api.spec import RLJobSpec
from rljob_api.spec.algorithm import Difficulty
from rljob_trainer.algorithm.shaping import difficulty_band
from rljob_trainer.driver.buffer.assembly import Outcome, ScoredGroup, require_scored
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import SampleFailed
from rljob_trainer.wire.trajectory import Trajectory

GroupKind = Literal["kept", "right", "wrong", "hard", "easy", "unscored"]


def group_kind(group: ScoredGroup, difficulty: Difficulty | None = None) -> GroupKind:
    """What a group is worth to an algorithm that compares the samples of a prompt.

    kept: rewards differ, and their mean is within `difficulty`; hard, easy: their mean is below or above it; right, wrong: all samples have the
    same reward, above 0 or not; unscored: fewer than two samples have a reward.
    """
    rewards = [o.result.reward for o in group if isinstance(o.result, Trajectory)]
    if len(rewards) < 2:
        return "unscored"
    if len(set(rewards)) > 1:
        return difficulty_band(rewards, difficulty) if difficulty else "kept"
    return "right" if rewards[0] > 0 else "wrong"


def fit_later(waits: Collection[int], wanted: int) -> bool:
    """Whether groups that may wait for `waits` more steps can all be trained in time, `wanted` in each step (earliest deadline first)."""
    return all(i < wait * wanted for i, wait in enumerate(sorted(waits)))


class Selection:
    """Selects the groups of one step. Groups are identified by the positions of their prompts; rewards are those before any penalty."""

    def __init__(self, spec: RLJobSpec):
        self._wanted, self._dynamic = spec.train.prompts_per_step, spec.algorithm.dynamic_sampling
        self._difficulty = spec.algorithm.difficulty
        self._keeps = spec.keeps_groups
        self._rounds = self._begun = 0
        self._groups: dict[int, ScoredGroup] = {}
        """Every complete group that `choose` has seen in this step."""
        self._round: list[ScoredGroup] = []
        """Those that it has seen since the round began."""
        self._useful: list[int] = []
        self.useless: list[int] = []
        """Positions of complete groups that dynamic sampling rejects. Kept, since `choose` asks again with each group that is complete."""
        self._chosen: list[int] = []

    def begin_round(self, begun: int) -> None:
        """Start another round of generation; `begun` groups have been begun by now in all rounds of the step.

        Raises ConfigurationError after dynamicSampling.maxRounds rounds, and as require_scored when no sample of the last round was scored.
        """
        self._require_scored()
        if self._dynamic and self._rounds >= self._dynamic.max_rounds:
            raise self._unfilled(self._dynamic.max_rounds)
        self._rounds, self._begun, self._round = self._rounds + 1, begun, []

    def choose(self, complete: Mapping[int, ScoredGroup], waits: Mapping[int, int]) -> bool:
        """Choose promptsPerStep of the complete groups, the oldest first. Returns False when there are not enough yet, or when a group that is left
        over could not be trained before it is too old.

        Without over-sampling this waits for the whole round, so that the choice does not depend on which group is complete first. Raises as
        require_scored.

        Args:
            waits: of every group in generation, complete or not: how many more steps it may wait; 0: only this step can train it
        """
        if len(self._groups.keys() | complete.keys()) < min(self._rounds * self._wanted, self._begun):
            return False
        self._look_at(complete)
        chosen = sorted(self._useful, key=lambda p: (waits.get(p, math.inf), p))[: self._wanted]
        used = {*chosen, *self.useless}
        if len(chosen) < self._wanted or not fit_later([w for p, w in waits.items() if p not in used], self._wanted):
            return False
        self._require_scored()
        self._chosen = sorted(chosen)
        return True

    @property
    def round_is_over(self) -> bool:
        """All groups that have been begun are complete, and `choose` has seen them."""
        return len(self._groups) >= self._begun

    @property
    def chosen(self) -> dict[int, ScoredGroup]:
        """The promptsPerStep groups of the step, in the order of the data."""
        return {position: self._groups[position] for position in self._chosen}

    @property
    def failed(self) -> list[Outcome]:
        """Samples without a score, of all groups that this step has used up."""
        return [o for group in self._used().values() for o in group if isinstance(o.result, SampleFailed)]

    def metrics(self) -> dict[str, float]:
        """Metrics over all groups that this step has used up. Empty without dynamic sampling."""
        if not self._dynamic:
            return {}
        used = self._used()
        count = Counter(map(self._kind, used.values()))
        rewards = [o.result.reward for group in used.values() for o in group if isinstance(o.result, Trajectory)]
        return {
            "sampling/rounds": float(self._rounds),
            "sampling/kept": count["kept"] / len(used),
            "sampling/all_correct": count["right"] / len(used),
            "sampling/all_wrong": count["wrong"] / len(used),
            "sampling/unscored": count["unscored"] / len(used),
            **({f"sampling/too_{k}": count[k] / len(used) for k in ("hard", "easy")} if self._difficulty else {}),
            "sampling/surplus": float(count["kept"] - self._wanted),
            "sampling/reward": sum(rewards) / len(rewards),
        }

    def _kind(self, group: ScoredGroup) -> GroupKind:
        return group_kind(group, self._difficulty)

    def _look_at(self, complete: Mapping[int, ScoredGroup]) -> None:
        new = {position: complete[position] for position in sorted(complete.keys() - self._groups.keys())}
        self._groups |= new
        self._round += new.values()
        for position, group in new.items():
            is_useful = not self._dynamic or self._kind(group) == "kept"
            (self._useful if is_useful else self.useless).append(position)

    def _require_scored(self) -> None:
        require_scored([o for group in self._round for o in group])

    def _used(self) -> dict[int, ScoredGroup]:
        """Groups that were chosen or rejected; with dynamic sampling also surplus ones, unless they are kept for the next step."""
        if self._dynamic and not self._keeps:
            return self._groups
        used = {*self._chosen, *self.useless}
        return {p: group for p, group in self._groups.items() if p in used}

    def _unfilled(self, rounds: int) -> ConfigurationError:
        count = Counter(map(self._kind, self._groups.values()))
        rule = (
            f"after so many rounds only {count['kept']} of the {self._wanted} prompts of a step have samples with different rewards; "
            f"of {len(self._groups)} prompts {count['right']} were all right, {count['wrong']} all wrong, "
            f"{count['unscored']} had fewer than two scored samples"
        ) + (f", {count['hard']} were too hard and {count['easy']} too easy" if self._difficulty else "")
        fix = "mix in easier or harder prompts, raise samplesPerPrompt, lower promptsPerStep, or raise the rounds"
        return ConfigurationError("spec.algorithm.dynamicSampling.maxRounds", str(rounds), rule, fix)
