"""Which tokens of a trajectory are the policy's: those that it generated at that place, bit by bit."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.agents.recording import Recorded, Rollout, endings, rollout_of
from rljob_trainer.wire.trajectory import Segment, sampled


def answer(context: list[int], *tokens: int, step: int = 3, truncated: bool = False) -> Recorded:
    """With a log-probability of -token for every token."""
    return Recorded(np.array(context, np.int32), (sampled(tokens, [-t for t in tokens], step),), truncated)


def rollout(tokens: list[int], *answers: Recorded, ended_early: bool = False) -> Rollout | None:
    return branched([tokens], *answers, ended_early=ended_early)


def branched(sequences: list[list[int]], *answers: Recorded, ended_early: bool = False) -> Rollout | None:
    return rollout_of([np.array(tokens, np.int32) for tokens in sequences], answers, ended_early)


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


def test_a_branch_begins_where_the_context_was_rewritten() -> None:
    found = branched([[1, 5, 9, 6], [1, 8, 7]], answer([1], 5), answer([1, 5, 9], 6), answer([1, 8], 7))
    assert said(found) == [("prompt", [1]), ("policy", [5]), ("environment", [9]), ("policy", [6])]
    assert found and [(s.source, s.tokens.tolist()) for s in found.branches[0]] == [("prompt", [1, 8]), ("policy", [7])]
    assert (found.turns, found.left_out, found.last_turn.tolist()) == (3, 0, [6])


def test_a_turn_that_two_branches_share_is_learnt_from_once() -> None:
    found = branched([[1, 5, 9, 6], [1, 5, 8, 7]], answer([1], 5), answer([1, 5, 9], 6), answer([1, 5, 8], 7))
    assert found and [(s.source, s.tokens.tolist()) for s in found.branches[0]] == [
        ("prompt", [1, 5, 8]),
        ("policy", [7]),
    ]
    assert found.turns == 3


def test_a_branch_in_which_the_policy_wrote_nothing_new_is_none() -> None:
    found = branched([[1, 5], [1, 5]], answer([1], 5))
    assert found and found.branches == ()


def test_the_reward_of_a_turn_is_at_its_end_and_in_the_sum() -> None:
    first, second = replace(answer([1], 5, 6), reward=0.5), replace(answer([1, 5, 6], 7), reward=0.25)
    found = rollout([1, 5, 6, 7], first, second)
    assert said(found) == [("prompt", [1]), ("policy", [5, 6]), ("policy", [7])], (
        "turns that earned something stay apart"
    )
    assert found and [s.reward for s in found.segments] == [0.0, 0.5, 0.25] and found.reward == 0.75


def test_a_turn_of_several_policies_earns_with_its_last_token() -> None:
    parts = (sampled([5], [-5], 3), sampled([6], [-6], 4))
    found = rollout([1, 5, 6], Recorded(np.array([1], np.int32), parts, False, 2.0))
    assert found and [s.reward for s in found.segments] == [0.0, 0.0, 2.0]


def test_the_endings_of_a_conversation_are_the_sequences_that_no_other_continues() -> None:
    answers = [answer([1], 5), answer([1, 5, 9], 6), answer([2], 8), answer([1, 7], 4)]
    assert [e.tolist() for e in endings(answers)] == [[1, 7, 4], [2, 8], [1, 5, 9, 6]]
