"""Agents that continue a trajectory whose process was lost: wherever that happens, the trajectory is the one that would have been."""

import asyncio
import gc
import pickle
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec.common import Sampling
from rljob_trainer.agents.api import LastTurn, Policy
from rljob_trainer.agents.history import History, parameters_of, read
from rljob_trainer.agents.session import Response
from rljob_trainer.wire.trajectory import Ints
from trainer.agents.losses import (
    AGENTS,
    TURNS,
    Agent,
    Lost,
    Process,
    deterministic,
    fields_of,
    made,
    messages_only,
    refused_at_times,
    session_of,
    tokens_only,
)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_trajectory_whose_process_is_lost_in_any_question_is_the_one_that_would_have_been(agent: Agent) -> None:
    _, whole = await made(agent, [])
    assert whole.turns == TURNS and whole.truncated
    for lost_in in range(1, 3 * TURNS):
        for answered in (False, True):
            session, rollout = await made(agent, [(lost_in, answered)])
            assert fields_of(rollout) == fields_of(whole)
            assert session.resumed + session.run_again <= 1


async def test_what_the_rollouts_refuse_is_refused_again_and_counts_once() -> None:
    _, whole = await made(refused_at_times, [])
    assert whole.turns == TURNS - 2 and whole.truncated
    for lost_in in range(1, 2 * TURNS):
        for answered in (False, True):
            _, rollout = await made(refused_at_times, [(lost_in, answered)])
            assert fields_of(rollout) == fields_of(whole)


async def test_a_trajectory_that_had_no_room_for_a_turn_stays_truncated() -> None:
    """Also where the agent does not ask again."""
    session = session_of(4096)
    with pytest.raises(Lost):  # when it asks for a turn too many
        await Process(session, 2 * TURNS + 1, answered=True).run(tokens_only)
    known = session.continued()
    rollout = known.rollout([known._answers[known._answers.last].recorded.whole.tolist()])
    assert rollout and rollout.turns == TURNS and rollout.truncated


@settings(max_examples=60)
@given(
    agent=st.sampled_from([*AGENTS, refused_at_times]),
    losses=st.lists(st.tuples(st.integers(1, 2 * TURNS), st.booleans()), max_size=8),
    max_tokens=st.integers(40, 400),
)
def test_no_number_of_losses_changes_a_trajectory_and_none_costs_a_turn_or_a_token_of_the_limits(
    agent: Agent, losses: list[tuple[int, bool]], max_tokens: int
) -> None:
    async def both() -> None:
        (_, whole), (_, rollout) = await made(agent, [], max_tokens), await made(agent, losses, max_tokens)
        assert fields_of(rollout) == fields_of(whole)

    asyncio.run(both())


@pytest.mark.parametrize(("lost_in", "again"), [(3, [1]), (4, [])])
async def test_only_what_was_half_generated_is_asked_for_again(lost_in: int, again: list[int]) -> None:
    """In its third question the agent asks for the second turn, and in its fourth for the tokens of a text."""
    asked = list[int]()

    async def counted(context: Ints, sampling: Sampling, turn: int) -> Response:
        asked.append(turn)
        return await deterministic(context, sampling, turn)

    session = session_of(4096)
    session._sample = counted
    with pytest.raises(Lost):
        await Process(session, lost_in, answered=False).run(tokens_only)
    session = session.continued()
    await Process(session, 0, True).run(tokens_only)
    assert asked == [0, 1, *again, *range(2, TURNS)]
    assert (session.resumed, session.run_again) == (1, 0)


async def test_a_trajectory_that_is_lost_before_its_first_answer_begins_anew() -> None:
    session = session_of(4096)
    with pytest.raises(Lost):
        await Process(session, 1, answered=False).run(tokens_only)
    again = session.continued()
    assert (again.resumed, again.run_again) == (0, 1)
    assert read(again.history()) == (History(), LastTurn())


async def test_what_is_told_of_a_hundred_turns_is_no_more_than_they_are_long() -> None:
    """Whole contexts would grow with the square of the turns."""

    async def size(turns: int) -> int:
        session = session_of(10**6)
        session._spec = session._spec.model_copy(update={"max_turns": turns})
        await Process(session, 0, True).run(tokens_only)
        return len(pickle.dumps(session.history()))

    half, whole = await size(50), await size(100)
    assert 1.9 * half < whole < 2.1 * half


async def test_what_an_agent_has_of_two_hundred_turns_takes_four_times_the_memory_of_fifty() -> None:
    """Whole contexts would take sixteen times as much, in a process that has hundreds of trajectories."""

    async def size(turns: int) -> int:
        session = session_of(10**6)
        session._spec = session._spec.model_copy(update={"max_turns": turns})
        await Process(session, 0, True).run(messages_only)
        message = pickle.dumps(session.history())
        tracemalloc.start()
        try:
            known = read(pickle.loads(message))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(known[0].turns) == turns
        return held

    few, many = await size(50), await size(200)
    assert 3.5 * few < many < 4.5 * few


@pytest.mark.parametrize("agent", [tokens_only, messages_only])
async def test_what_the_driver_has_of_a_trajectory_grows_as_that_does(agent: Agent) -> None:
    """Whole contexts and conversations of each turn would grow with the square of the turns. References to messages do."""

    async def size(turns: int) -> int:
        session = session_of(10**6)
        session._spec = session._spec.model_copy(update={"max_turns": turns})
        tracemalloc.start()
        try:
            await Process(session, 0, True).run(agent)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(session._answers) == turns
        return held

    await size(2)  # imports
    few, many = await size(25), await size(100)
    assert many < 8 * few


async def test_an_answer_of_a_session_that_was_lost_is_not_part_of_the_next() -> None:
    """It may be on its way when the process is given up."""
    session = session_of(4096)
    policy = Policy(Process(session, 0, True)._ask)
    conversation: list[dict[str, Any]] = [{"role": "user", "content": "1+2="}]
    first = await policy.generate(conversation)
    assert first
    conversation += [first.message, {"role": "user", "content": "3"}]
    late = asyncio.create_task(policy.generate(conversation))
    await asyncio.sleep(0)
    following = session.continued()
    before = following.history()
    second = await late
    assert second and len(session.history()["turns"]) == 2
    assert following.history() == before and len(before["turns"]) == 1
    behind = [*conversation, second.message, {"role": "user", "content": "4"}]
    assert session.conversations.context(behind, [])[: len(second.whole)] == second.whole
    assert following.conversations.context(behind, [])[: len(second.whole)] != second.whole, "tokens of the late answer"


async def test_a_conversation_is_known_once_after_any_loss() -> None:
    """The session that continues hears of the last one again, which may be new to it."""
    for answered in (False, True):
        session, _ = await made(messages_only, [(lost_in, answered) for lost_in in (2, 1, 2)])
        assert len(session.conversations._known) == len(session._answers) == TURNS


async def good(prompt: Any, policy: Any, row: Any, history: Any) -> None: ...
async def by_name(prompt: Any, policy: Any, row: Any, *, history: Any = None) -> None: ...
async def without(prompt: Any, policy: Any, row: Any, **others: Any) -> None: ...
async def in_place_of_the_row(prompt: Any, policy: Any, history: Any) -> None: ...
async def positional(prompt: Any, policy: Any, row: Any, history: Any, /) -> None: ...
async def with_another(prompt: Any, policy: Any, row: Any, history: Any, depth: int) -> None: ...


@pytest.mark.parametrize(("function", "continues"), [(good, True), (by_name, True), (without, False)])
def test_a_function_says_by_its_parameter_that_it_continues(function: Callable[..., Any], continues: bool) -> None:
    assert ("history" in parameters_of(function)) is continues


@pytest.mark.parametrize("function", [in_place_of_the_row, positional, with_another, partial(print)])
def test_a_function_that_cannot_be_told_its_history_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"async def rollout\(prompt, policy, row"):
        parameters_of(function)
