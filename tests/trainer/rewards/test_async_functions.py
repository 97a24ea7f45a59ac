"""Async reward functions, in real worker processes: calls do not wait for each other, and do not take each other along."""

import asyncio
from pathlib import Path

import pytest

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import Reward, RewardFailed, RewardRequest

CODE = """
import asyncio, os, time
together = 0

async def reward(response, data_source):
    global together
    together += 1
    if response == "raise":
        raise TimeoutError("of the judge")
    if response == "die":
        os._exit(3)
    if response == "block":
        time.sleep(60)
    await asyncio.sleep(float(response))
    return {"score": float(data_source), "together": together}
"""


@pytest.fixture
async def manager(tmp_path: Path):
    (tmp_path / "reward.py").write_text(CODE)
    found = RewardManager([RewardSpec(python=PythonReward(path=str(tmp_path / "reward.py")), timeout_seconds=3.0)])
    await found.start()
    yield found
    await found.stop()


def case(response: str, data_source: int = 1) -> RewardRequest:
    return RewardRequest("", response, "", str(data_source))


async def test_calls_run_at_the_same_time_and_each_gets_its_own_answer(manager):
    found = await asyncio.gather(*(manager.score(case("0.5" if i % 2 else "0.2", i)) for i in range(60)))
    assert [reward.score for reward in found] == list(range(60))
    assert max(reward.metrics["together"] for reward in found) > 10


async def test_a_late_call_and_one_that_raises_fail_alone(manager):
    late, raised, good = await asyncio.gather(
        *(manager.score(case(response)) for response in ("60", "raise", "0.5")), return_exceptions=True
    )
    assert isinstance(late, RewardFailed) and (late.kind, late.reason) == ("timeout", "took longer than 3 s")
    assert isinstance(raised, RewardFailed) and raised.kind == "raised", "a TimeoutError of the function's own"
    assert "reward() in reward.py: TimeoutError: of the judge (line 9:" in raised.reason
    assert isinstance(good, Reward)
    assert (await manager.score(case("0"))).metrics["together"] > 1, "the process still runs"


@pytest.mark.parametrize(("response", "kind"), [("die", "raised"), ("block", "timeout")])
async def test_a_function_that_ends_or_blocks_its_process_fails_and_the_next_call_works(manager, response, kind):
    with pytest.raises(RewardFailed) as caught:
        await manager.score(case(response))
    assert caught.value.kind == kind
    found = await asyncio.gather(*(manager.score(case("0")) for _ in range(4)))
    assert [reward.score for reward in found] == [1.0] * 4


async def test_calls_that_came_later_into_a_process_that_is_ended_for_another_one_are_made_again(manager):
    blocked = asyncio.create_task(manager.score(case("block")))
    await asyncio.sleep(2.5)  # of the 3 s that the blocked call may take
    later = await asyncio.gather(*(manager.score(case("0", i)) for i in range(16)))
    assert [reward.score for reward in later] == list(range(16))
    with pytest.raises(RewardFailed, match="took longer"):
        await blocked


async def test_a_call_that_is_cancelled_leaves_the_others_alone(manager):
    calls = [asyncio.create_task(manager.score(case("0.5", i))) for i in range(4)]
    await asyncio.sleep(0.1)
    calls[0].cancel()
    assert [reward.score for reward in await asyncio.gather(*calls[1:])] == [1.0, 2.0, 3.0]
