"""How long an engine has been silent, as the API server measures it."""

import asyncio

import pytest

from rljob_trainer.server import guard
from rljob_trainer.server.guard import EngineClock


async def test_an_answer_of_the_engine_ends_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SILENCE_SECONDS", 0.05)
    clock, answer = EngineClock(), asyncio.Event()
    first = await clock.silence(answer.wait)
    assert 0.05 <= first < await clock.silence(answer.wait)
    answer.set()
    assert await clock.silence(answer.wait) == 0.0


async def test_one_question_is_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SILENCE_SECONDS", 0.01)
    asked: list[int] = []

    async def ask() -> None:
        asked.append(1)
        await asyncio.sleep(60)

    clock = EngineClock()
    for _ in range(3):
        await clock.silence(ask)
    assert len(asked) == 1


async def test_a_failed_engine_says_why() -> None:
    async def ask() -> None:
        raise RuntimeError("CUDA error")

    clock = EngineClock()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA error"):
            await clock.silence(ask)
