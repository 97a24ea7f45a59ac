"""Dynamic sampling without any I/O: rewards in, groups to train on out."""

import pytest

from rljob_trainer.buffer.assembly import Outcome
from rljob_trainer.buffer.selection import Selection, verdict
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.trajectory import Trajectory
from trainer.driver.specs import job

FAILED = None
RIGHT, WRONG, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)
UNJUDGED = (1.0, FAILED)


def outcomes(first: int, *groups: tuple[float | None, ...]) -> list[Outcome]:
    """Groups numbered from `first`; prompts are numbered alike, so that one sees where a group came from."""
    return [
        Outcome(
            g,
            i,
            RewardFailed("timeout", "spec.rewards[0].python.path", "/r.py", "took longer than 1 s")
            if reward is None
            else Trajectory.of_response(
                (1,),
                (2,),
                (-0.1,),
                0,
                prompt_index=g,
                group=g,
                sample=i,
                finish_reason="stop",
                reward=reward,
                data_source="s",
            ),
        )
        for g, group in enumerate(groups, first)
        for i, reward in enumerate(group)
    ]


def dynamic(rounds: int = 8, samples: int = 2) -> Selection:
    return Selection(job(samples=samples, algorithm={"dynamicSampling": {"maxRounds": rounds}}))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (MIXED, "kept"),
        (RIGHT, "right"),
        (WRONG, "wrong"),
        ((-1.0, -1.0), "wrong"),
        (UNJUDGED, "unjudged"),
        ((0.0, 1.0, FAILED), "kept"),
        ((1.0, 1.0, FAILED), "right"),
        ((0.1, 0.1 + 1e-9), "kept"),
    ],
)
def test_a_group_is_kept_when_its_judged_samples_differ(rewards, expected):
    assert verdict(outcomes(0, rewards)) == expected


def test_without_dynamic_sampling_one_round_is_the_step_whatever_its_rewards():
    selection = Selection(job())
    selection.add(outcomes(0, RIGHT, UNJUDGED))
    assert selection.is_full and selection.metrics() == {}
    assert selection.chosen()[:3] == outcomes(0, RIGHT, UNJUDGED)[:3] and len(selection.chosen()) == 4


def test_rounds_go_on_until_the_step_is_full_and_what_is_more_is_dropped_and_counted():
    selection = dynamic()
    selection.add(outcomes(0, RIGHT, WRONG))
    assert not selection.is_full and selection.generated == 2
    selection.add(outcomes(2, MIXED, UNJUDGED))
    assert not selection.is_full and selection.generated == 4
    selection.add(outcomes(4, MIXED, MIXED)[::-1])
    assert selection.is_full
    chosen = selection.chosen()
    assert [(o.group, o.sample, o.result.group, o.result.prompt_index) for o in chosen] == [
        (0, 0, 0, 2),
        (0, 1, 0, 2),
        (1, 0, 1, 4),
        (1, 1, 1, 4),
    ]
    assert selection.metrics() == {
        "sampling/rounds": 3.0,
        "sampling/kept": 3 / 6,
        "sampling/all_right": 1 / 6,
        "sampling/all_wrong": 1 / 6,
        "sampling/unjudged": 1 / 6,
        "sampling/surplus": 1.0,
        "sampling/reward": 6 / 11,
    }


def test_a_step_that_does_not_fill_fails_with_the_counts():
    selection = dynamic(rounds=2)
    selection.add(outcomes(0, RIGHT, MIXED))
    with pytest.raises(
        ConfigurationError, match=r"only 1 of the 2 .* of 4 prompts 2 were all right, 1 all wrong, 0 had"
    ) as caught:
        selection.add(outcomes(2, RIGHT, WRONG))
    assert (caught.value.field, caught.value.value) == ("spec.algorithm.dynamicSampling.maxRounds", "2")


@pytest.mark.parametrize("selection", [Selection(job()), dynamic()])
def test_a_round_that_nobody_could_judge_is_the_users_to_mend(selection):
    with pytest.raises(ConfigurationError, match="every reward of a step failed; the first said: took longer than 1 s"):
        selection.add(outcomes(0, (FAILED, FAILED), (FAILED, FAILED)))


def test_a_round_that_lost_a_sample_never_passes():
    with pytest.raises(AssertionError, match="lost"):
        dynamic().add(outcomes(0, MIXED, MIXED)[1:])
