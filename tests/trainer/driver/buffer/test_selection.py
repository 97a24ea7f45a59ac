"""Dynamic sampling without any I/O: rewards in, groups to train on out."""

import pytest

from rljob_api.spec.algorithm import Difficulty
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.selection import Selection, group_kind
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.request import RewardFailed
from rljob_trainer.wire.trajectory import Trajectory
from trainer.driver.buffer.specs import job

FAILED = None
RIGHT, WRONG, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)
UNSCORED = (1.0, FAILED)


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


def dynamic(rounds: int = 8, train: dict | None = None, **algorithm) -> Selection:
    return Selection(job(algorithm={"dynamicSampling": {"maxRounds": rounds}} | algorithm, train=train))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (MIXED, "kept"),
        (RIGHT, "right"),
        (WRONG, "wrong"),
        ((-1.0, -1.0), "wrong"),
        (UNSCORED, "unscored"),
        ((0.0, 1.0, FAILED), "kept"),
        ((1.0, 1.0, FAILED), "right"),
        ((0.1, 0.1 + 1e-9), "kept"),
    ],
)
def test_a_group_is_kept_when_its_judged_samples_differ(rewards, expected):
    assert group_kind(outcomes(0, rewards)) == expected


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((0.0, 0.0, 0.0, 1.0), "hard"),
        ((0.0, 0.0, 1.0, 1.0), "kept"),
        ((0.0, 1.0, 1.0, 1.0), "easy"),
        ((0.0, 1.0, 1.0, FAILED), "kept"),
        ((0.0,) * 4, "wrong"),
        ((1.0,) * 4, "right"),
    ],
)
def test_a_group_is_too_hard_or_too_easy_by_the_mean_of_its_judged_samples(rewards, expected):
    assert group_kind(outcomes(0, rewards), Difficulty(low=0.25, high=0.75)) == expected


def test_others_are_sampled_in_the_place_of_what_is_too_hard_or_too_easy():
    selection = dynamic(difficulty={"low": 0.3, "high": 0.7})
    hard, easy, fits = (0.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)
    selection.begin_round(2)
    assert not selection.choose(complete(0, hard, fits), {})
    selection.begin_round(4)
    assert selection.choose(complete(2, easy, fits), {})
    metrics = selection.metrics()
    assert [*selection.chosen] == [1, 3]
    assert [metrics[f"sampling/{name}"] for name in ("kept", "too_hard", "too_easy")] == [0.5, 0.25, 0.25]


def complete(first: int, *groups: tuple[float | None, ...]) -> dict[int, list[Outcome]]:
    """Groups at the positions from `first` on."""
    found = outcomes(first, *groups)
    return {g: [o for o in found if o.group == g] for g in range(first, first + len(groups))}


def test_without_dynamic_sampling_one_round_is_the_step_whatever_its_rewards():
    selection = Selection(job())
    selection.begin_round(2)
    assert selection.choose(complete(0, RIGHT, UNSCORED), {})
    assert selection.metrics() == {} and [*selection.chosen] == [0, 1] and len(selection.failed) == 1


def test_a_step_is_made_of_what_is_due_and_of_the_first_complete_groups():
    def chosen(positions: list[int], due: tuple[int, ...] = ()) -> list[int] | None:
        selection = Selection(job(train={"overSampling": 2}))
        selection.begin_round(4)
        found = {p: complete(p, RIGHT)[p] for p in positions}
        return [*selection.chosen] if selection.choose(found, dict.fromkeys(due, 0)) else None

    assert chosen([7, 3, 5]) == [3, 5]
    assert chosen([7, 3, 5], due=(7,)) == [3, 7]
    assert chosen([7, 3, 5], due=(7, 5)) == [5, 7]
    assert chosen([3]) is None, "too few are complete"
    assert chosen([7, 3, 5], due=(9,)) is None, "what is due is waited for"


def test_rounds_follow_until_the_step_is_full_and_what_is_more_is_dropped_and_counted():
    selection, found = dynamic(), {}
    for first, groups in ((0, (RIGHT, WRONG)), (2, (MIXED, UNSCORED)), (4, (MIXED, MIXED))):
        selection.begin_round(first + 2)
        half = complete(first, groups[0])
        assert not selection.choose(found | half, {}) and not selection.round_is_over, "a round is looked at as a whole"
        found |= complete(first, *groups)
        assert selection.choose(found, {}) == (first == 4)
        assert selection.round_is_over
    assert [*selection.chosen] == [2, 4] and selection.useless == [0, 1, 3]
    assert selection.metrics() == {
        "sampling/rounds": 3.0,
        "sampling/kept": 3 / 6,
        "sampling/all_correct": 1 / 6,
        "sampling/all_wrong": 1 / 6,
        "sampling/unscored": 1 / 6,
        "sampling/surplus": 1.0,
        "sampling/reward": 6 / 11,
    }


def test_with_over_sampling_a_step_waits_for_no_more_useful_groups_than_it_needs():
    selection = dynamic(train={"overSampling": 2})
    selection.begin_round(4)
    assert not selection.choose(found := complete(0, RIGHT, MIXED), {})
    assert selection.choose(found | complete(3, MIXED), {}), "the third group is still being generated"
    assert [*selection.chosen] == [1, 3] and not selection.round_is_over
    assert selection.metrics()["sampling/kept"] == 2 / 3


def comparisons(wanted: int) -> int:
    """Of positions, until a step of so many prompts is full where every other one is useless."""
    count = 0

    class Position(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal count
            count += 1
            return int(self) == other

    selection, found = dynamic(train={"promptsPerStep": wanted, "overSampling": 2}), {}
    selection.begin_round(2 * wanted)
    for i in range(2 * wanted):
        found |= {Position(i): group for group in complete(i, RIGHT if i % 2 else MIXED).values()}
        full = selection.choose(found, {})
    assert full and len(selection.chosen) == len(selection.useless) == wanted
    return count


def test_a_group_that_is_complete_is_compared_with_few_others():
    """The driver chooses anew after each: with twice the groups it has four times the work of sorting them, not eight times that of a search."""
    assert comparisons(64) < 6 * comparisons(32)


def test_over_sampled_rounds_follow_each_other_as_well():
    selection = dynamic(rounds=2, train={"overSampling": 2})
    selection.begin_round(4)
    assert not selection.choose(found := complete(0, RIGHT, MIXED, WRONG, (FAILED, FAILED)), {})
    assert selection.round_is_over
    selection.begin_round(8)
    assert selection.choose(found | complete(6, MIXED), {}) and [*selection.chosen] == [1, 6]
    assert len(selection.failed) == 2


def test_partial_rollouts_give_the_next_step_what_was_too_much():
    train = {"overSampling": 2, "partialRollouts": {}}
    correction = {"rolloutCorrection": {"importanceSampling": "token"}}
    selection = dynamic(train=train, **correction)
    selection.begin_round(4)
    assert selection.choose(complete(0, MIXED, MIXED, MIXED, WRONG), {1: 0})
    assert [*selection.chosen] == [0, 1] and selection.useless == [3]
    metrics = selection.metrics()
    assert (metrics["sampling/surplus"], metrics["sampling/kept"]) == (0.0, 2 / 3), "the third one is not used up"


def test_a_step_that_does_not_fill_fails_with_the_counts():
    selection = dynamic(rounds=2)
    selection.begin_round(2)
    assert not selection.choose(found := complete(0, RIGHT, MIXED), {})
    selection.begin_round(4)
    assert not selection.choose(found | complete(2, RIGHT, WRONG), {})
    with pytest.raises(
        ConfigurationError, match=r"only 1 of the 2 .* of 4 prompts 2 were all right, 1 all wrong, 0 had"
    ) as caught:
        selection.begin_round(6)
    assert (caught.value.field, caught.value.value) == ("spec.algorithm.dynamicSampling.maxRounds", "2")


@pytest.mark.parametrize("rounds", [None, 1, 8])
def test_a_round_that_nobody_could_score_is_the_users_to_fix(rounds):
    selection = dynamic(rounds) if rounds else Selection(job())
    selection.begin_round(2)
    with pytest.raises(ConfigurationError, match="every reward of a step failed; the first said: took longer than 1 s"):
        selection.choose(complete(0, (FAILED, FAILED), (FAILED, FAILED)), {})
        selection.begin_round(4)
