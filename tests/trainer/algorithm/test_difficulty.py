"""Prompts that are too hard or too easy: which they are, and that their tokens leave the mask and nothing else."""

from collections.abc import Sequence

import pytest
import torch

from rljob_api.spec.algorithm import Difficulty
from rljob_trainer.algorithm.objective import Targets
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.algorithm.shaping import difficulty_band
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.driver.buffer.specs import job

REWARDS = [[0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
"""Of three prompts: means 1/4, 3/4, 1/2."""


class Step:
    """What rewards alone need of a step, of which one rank has all rows."""

    def __init__(self, batch: Batch):
        self.batch, self.rows = batch, range(len(batch.columns))

    def own(self, name: str) -> torch.Tensor:
        raise AssertionError("nothing was measured")

    def learnt(self) -> torch.Tensor:
        return torch.ones(int(self.batch.columns.response_length.sum()))

    def by_row(self, values: torch.Tensor) -> dict[int, torch.Tensor]:
        return dict(enumerate(values.split(self.batch.columns.response_length.tolist())))

    def over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        return values


def targets(
    rewards: Sequence[Sequence[float]], lengths: int = 2, cut: tuple[int, int] = (-1, -1), **algorithm
) -> Targets:
    made = [
        Trajectory.of_response(
            (1,), (2,) * lengths, (-0.1,) * lengths, 0, prompt_index=g, group=g, sample=i, reward=r, data_source="s",
            finish_reason="length" if (g, i) == cut else "stop",
        )
        for g, of_group in enumerate(rewards)
        for i, r in enumerate(of_group)
    ]  # fmt: skip
    spec = job(prompts=3, samples=4, algorithm=algorithm, rollout={"sampling": {"maxTokens": 4}})
    return PolicyObjective(spec).advantages(Step(Batch.of(1, made, {})))


def learnt(found: Targets) -> list[list[float]]:
    """Of every prompt, what share of each response's tokens is learnt."""
    means = [float(mask.mean()) for mask in found.columns["mask"].values()]
    return [means[i : i + 4] for i in range(0, 12, 4)]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [((0, 0, 0, 1), "hard"), ((0, 0, 1, 1), "kept"), ((0, 1, 1, 1), "easy"), ((0.26,), "kept"), ((-9, 9), "hard")],
)
def test_the_mean_has_to_lie_between_the_bounds_and_on_neither(rewards: tuple[float, ...], expected: str) -> None:
    assert difficulty_band(rewards, Difficulty(low=0.25, high=0.75)) == expected


def test_only_prompts_that_fit_are_learnt_and_the_advantages_of_all_stay() -> None:
    found = targets(REWARDS, difficulty={"low": 0.25, "high": 0.75})
    assert learnt(found) == [[0.0] * 4, [0.0] * 4, [1.0] * 4]
    assert found.metrics == {"train/too_hard": 1 / 3, "train/too_easy": 1 / 3}
    plain = targets(REWARDS)
    assert "mask" not in plain.columns and not plain.metrics
    assert all(torch.equal(a, plain.columns["advantages"][row]) for row, a in found.columns["advantages"].items())


def test_the_penalty_for_length_makes_no_prompt_harder_and_cut_off_responses_stay_out() -> None:
    """Of maxTokens 4 a response of 4 loses 1: all means are 1 lower than what was earned."""
    earned = [[r - 1.0 for r in of_group] for of_group in REWARDS]
    overlong = {"bufferTokens": 2, "penalty": 1.0, "filter": True}
    found = targets(earned, 4, (2, 1), difficulty={"low": 0.25, "high": 0.75}, overlong=overlong)
    assert learnt(found) == [[0.0] * 4, [0.0] * 4, [1.0, 0.0, 1.0, 1.0]]


def test_cut_off_responses_are_left_out_of_any_step_with_the_filter_and_learnt_without() -> None:
    found = targets(REWARDS, 4, (2, 1), overlong={"filter": True})
    assert learnt(found) == [[1.0] * 4, [1.0] * 4, [1.0, 0.0, 1.0, 1.0]] and not found.metrics
    assert "mask" not in targets(REWARDS, 4, (2, 1)).columns
    assert "mask" not in targets(REWARDS, 4, overlong={"filter": True}).columns


def test_with_dynamic_sampling_the_driver_has_chosen_already() -> None:
    assert "mask" not in targets(REWARDS, difficulty={"low": 0.25}, dynamicSampling={}).columns
