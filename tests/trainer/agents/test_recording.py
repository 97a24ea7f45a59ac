"""Which tokens of a trajectory are the policy's: those that it generated at that place, bit by bit."""

import numpy as np
import pytest

from rljob_trainer.agents.recording import Recorded, Rollout, rollout_of
from rljob_trainer.trajectory import Segment, sampled


def answer(context: list[int], *tokens: int, step: int = 3, truncated: bool = False) -> Recorded:
    """With a log-probability of -token for every token."""
    return Recorded(np.array(context, np.int32), (sampled(tokens, [-t for t in tokens], step),), truncated)


def rollout(tokens: list[int], *answers: Recorded, ended_early: bool = False) -> Rollout | None:
    return rollout_of(np.array(tokens, np.int32), answers, ended_early)


def said(found: Rollout | None) -> list[tuple[str, list[int]]]:
    assert found is not None
    return [(s.source, s.tokens.tolist()) for s in found.segments]


def test_what_stands_between_two_answers_is_the_environments() -> None:
    found = rollout([1, 2, 5, 6, 9, 7], answer([1, 2], 5, 6), answer([1, 2, 5, 6, 9], 7, step=4))
    assert said(found) == [("prompt", [1, 2]), ("policy", [5, 6]), ("environment", [9]), ("policy", [7])]
    assert found and found.turns == 2 and found.last_turn.tolist() == [7] and found.left_out == 0
    policy: list[Segment] = [s for s in found.segments if s.log_probs is not None]
    assert [s.log_probs.tolist() for s in policy] == [[-5, -6], [-7]] and [s.policy_step for s in policy] == [3, 4]


def test_what_comes_behind_the_last_answer_is_nobodys_context() -> None:
    assert said(rollout([1, 5, 8, 8], answer([1], 5))) == [("prompt", [1]), ("policy", [5])]


def test_an_answer_that_the_trajectory_does_not_hold_is_counted_and_not_learnt_from() -> None:
    found = rollout([1, 6, 9, 7], answer([1], 5, 5, 5), answer([1], 6), answer([1, 6, 9], 7))
    assert said(found) == [("prompt", [1]), ("policy", [6]), ("environment", [9]), ("policy", [7])]
    assert found and (found.left_out, found.turns) == (3, 2)


@pytest.mark.parametrize("tokens", [[1, 5, 7], [2, 5, 6], [1, 5]])
def test_an_answer_that_was_changed_cut_or_put_elsewhere_is_not_the_policys(tokens: list[int]) -> None:
    assert rollout(tokens, answer([1], 5, 6)) is None


def test_two_equal_answers_to_one_context_count_once() -> None:
    found = rollout([1, 5], answer([1], 5), answer([1], 5))
    assert said(found) == [("prompt", [1]), ("policy", [5])] and found and found.left_out == 1


def test_an_answer_of_several_policies_keeps_its_parts() -> None:
    parts = (sampled([5], [-5], 3), sampled([6], [-6], 4))
    found = rollout([1, 5, 6], Recorded(np.array([1], np.int32), parts, False))
    assert found and found.segments[1:] == parts


@pytest.mark.parametrize(
    ("truncated", "early", "cut"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_a_trajectory_is_cut_off_where_its_last_answer_is_or_another_was_refused(
    truncated: bool, early: bool, cut: bool
) -> None:
    found = rollout([1, 5], answer([1], 5, truncated=truncated), ended_early=early)
    assert found and found.truncated == cut
