"""The clock of a trajectory. Waiting for the policy is not the agent's time."""

import asyncio

import pytest

from rljob_trainer.agents.own_time import OwnTime


async def test_waiting_for_the_policy_does_not_count() -> None:
    own_time = OwnTime(0.5)
    async with own_time.limited():
        with own_time.stopped():
            await asyncio.sleep(1)  # twice what the agent has
    assert not own_time.is_over


async def test_the_agents_own_time_adds_up_around_its_questions() -> None:
    own_time = OwnTime(0.3)
    with pytest.raises(TimeoutError):
        async with own_time.limited():
            for _ in range(100):
                with own_time.stopped():
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)
    assert own_time.is_over


async def test_of_two_questions_the_last_to_be_answered_starts_the_clock_again() -> None:
    own_time = OwnTime(0.3)

    async def ask(seconds: float) -> None:
        with own_time.stopped():
            await asyncio.sleep(seconds)

    answered = False
    with pytest.raises(TimeoutError):
        async with own_time.limited():
            await asyncio.gather(ask(0.1), ask(0.8))
            answered = True
            await asyncio.sleep(60)
    assert answered


async def test_a_question_after_the_end_is_no_error() -> None:
    own_time = OwnTime(1)
    async with own_time.limited():
        pass
    with own_time.stopped():
        pass


async def test_what_is_before_the_first_turn_of_the_agent_does_not_count() -> None:
    own_time = OwnTime(0.2)
    await asyncio.sleep(0.4)  # for a process that is free, or a row of a slow volume
    async with own_time.limited():
        await asyncio.sleep(0.01)
