"""Agents that run what the policy has written in sandboxes: in real processes, asked by the whole driver, with real helpers and directories."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from rljob_api.spec.agent import EnvironmentPool
from rljob_trainer.agents import claims
from rljob_trainer.agents.claims import Claims, Sandboxes
from rljob_trainer.agents.own_time import OwnTime
from rljob_trainer.agents.python_file import Questions
from rljob_trainer.machine import free_port
from rljob_trainer.sandboxes.sandbox import SandboxError
from trainer.agents.test_traffic import Between
from trainer.sandboxes.helpers import TOKEN, listens, running
from trainer.sandboxes.pods import PROMPT, address, pods


def of(replicas: int = 1, claim_seconds: int = 600) -> Sandboxes:
    return Sandboxes([EnvironmentPool(name="python", replicas=replicas, claim_seconds=claim_seconds)], "secret")


async def claim(sandboxes: Sandboxes, of: Claims) -> int:
    return await asyncio.wait_for(of.claim("python"), PROMPT)


@pytest.mark.usefixtures("one_token")
async def test_a_pod_is_handed_out_once_however_old_the_operators_word_is(tmp_path: Path) -> None:
    async with pods(tmp_path, 2) as ((first, port), (_, other)):
        sandboxes = of()
        sandboxes.follow({"python": [address(port)]})
        async with sandboxes.claims() as mine, sandboxes.claims() as others:
            number = await claim(sandboxes, mine)
            waiting = asyncio.create_task(others.claim("python"))
            for _ in range(3):
                sandboxes.follow({"python": [address(port)]})
                await asyncio.sleep(0)
            await mine.give_back(number)
            sandboxes.follow({"python": [address(port)]})
            await asyncio.wait_for(first.wait(), PROMPT)
            assert not waiting.done() and not sandboxes.ready
            sandboxes.follow({"python": [address(other, "uid-2")]})
            assert await asyncio.wait_for(waiting, PROMPT) == 0 and sandboxes.ready


@pytest.mark.usefixtures("one_token")
async def test_one_that_does_not_answer_is_passed_over_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RETRY_SECONDS", 0.1)
    sandboxes = of()
    async with sandboxes.claims() as mine:
        port = free_port()
        sandboxes.follow({"python": [address(port)]})
        waiting = asyncio.create_task(mine.claim("python"))
        await asyncio.sleep(0.3)  # it is tried again and again, every 0.1 s
        assert not waiting.done()
        async with running(tmp_path, port, wanted=True):
            assert await asyncio.wait_for(waiting, PROMPT) == 0


@pytest.mark.usefixtures("one_token")
async def test_a_sandbox_that_is_kept_too_long_is_taken_away(tmp_path: Path) -> None:
    async with pods(tmp_path, 1) as ((pod, port),):
        sandboxes = of(claim_seconds=1)
        sandboxes.follow({"python": [address(port)]})
        async with sandboxes.claims() as mine:
            number = await claim(sandboxes, mine)
            await asyncio.wait_for(pod.wait(), PROMPT)
            with pytest.raises(SandboxError, match="taken away after spec.environments"):
                mine.of(number)


@pytest.mark.usefixtures("one_token")
async def test_a_claim_that_is_given_up_while_it_waits_takes_nothing(tmp_path: Path) -> None:
    async with pods(tmp_path, 1) as ((_, port),):
        sandboxes = of()
        async with sandboxes.claims() as mine:
            waiting = asyncio.create_task(mine.claim("python"))
            await asyncio.sleep(0)
            waiting.cancel()
            sandboxes.follow({"python": [address(port)]})
            await asyncio.wait([waiting])
            assert listens(port) and await claim(sandboxes, mine) == 0


async def test_a_claim_that_is_given_up_while_its_pod_does_not_answer_leaves_the_pod_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(claims, "token_of", lambda secret, uid: TOKEN)
    arrived, left = asyncio.Event(), asyncio.Event()

    async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        with suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    port, sandboxes = free_port(), of()
    sandboxes.follow({"python": [address(port)]})
    async with sandboxes.claims() as mine:
        server = await asyncio.start_server(is_silent, "127.0.0.1", port)
        waiting = asyncio.create_task(mine.claim("python"))
        await asyncio.wait_for(arrived.wait(), PROMPT)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.wait_for(left.wait(), PROMPT)
        server.close()
        await server.wait_closed()
        async with running(tmp_path, port):
            assert await claim(sandboxes, mine) == 0


async def test_one_that_is_given_back_by_a_task_that_is_cancelled_is_free_again() -> None:
    sandboxes = of()
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        number = await claim(sandboxes, mine)
        await mine.of(number).run(["sh", "-c", "sleep 600 >&- 2>&- <&- &"], 10, b"", 10)
        returning = asyncio.create_task(mine.give_back(number))
        await asyncio.sleep(0)
        returning.cancel()
        await asyncio.wait([returning])
    async with sandboxes.claims() as another:
        await claim(sandboxes, another)


async def test_a_trajectory_that_has_all_of_an_environment_is_refused_another_and_waits_for_nobody() -> None:
    sandboxes = of(replicas=2)
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        number, _ = await claim(sandboxes, mine), await claim(sandboxes, mine)
        with pytest.raises(SandboxError, match="environment python has replicas: 2, and this trajectory has claimed"):
            await claim(sandboxes, mine)
        await mine.give_back(number)
        await claim(sandboxes, mine)


async def test_waiting_for_the_first_one_is_not_the_agents_time_and_waiting_for_another_one_is() -> None:
    """Agents that wait for one another would lose all that they have, after claimSeconds."""
    sandboxes, session = of(replicas=2), Between(1).session
    session.own_time = OwnTime(0.5)
    sandboxes.follow(None)
    ask = {"environment": "python"}
    async with sandboxes.claims() as others, sandboxes.claims() as session.claims:
        numbers = [await claim(sandboxes, others), await claim(sandboxes, others)]
        with pytest.raises(TimeoutError):
            async with session.own_time.limited():
                first = asyncio.create_task(session.answer("claim", ask))
                await asyncio.wait({first}, timeout=1)
                assert not first.done()
                await others.give_back(numbers[0])
                await asyncio.wait_for(first, PROMPT)
                await asyncio.wait_for(session.answer("claim", ask), PROMPT)
        assert session.own_time.is_over


async def test_one_whose_claim_is_given_up_before_its_process_has_read_of_it_goes_back() -> None:
    sandboxes, session, sending = of(replicas=1), Between(1).session, asyncio.Event()
    sandboxes.follow(None)

    async def send(answer: object) -> None:
        sending.set()
        await asyncio.Event().wait()

    async with sandboxes.claims() as others, sandboxes.claims() as session.claims:
        asked = Questions(session, send)
        asked.begin(0, "claim", {"environment": "python"})
        await asyncio.wait_for(sending.wait(), PROMPT)
        asked.give_up(0)
        await asyncio.wait_for(claim(sandboxes, others), PROMPT)


async def test_a_trajectory_has_a_bounded_number_at_a_time() -> None:
    sandboxes = of(replicas=64)
    sandboxes.follow(None)
    async with sandboxes.claims() as mine:
        numbers = [await claim(sandboxes, mine) for _ in range(claims.MOST_CLAIMS)]
        with pytest.raises(SandboxError, match="at a time: give one back"):
            await claim(sandboxes, mine)
        await mine.give_back(numbers[0])
        await claim(sandboxes, mine)
