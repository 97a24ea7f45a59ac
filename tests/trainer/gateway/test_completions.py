"""What is complete of all samples of a sampler, as clients ask for it, and after a gateway that had some of them is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from aiohttp import web
from tinker import types

from rljob_api.spec.service import ServiceSpec
from rljob_trainer.gateway.clients import Keys
from rljob_trainer.gateway.completions import COPIES, Completions
from rljob_trainer.gateway.listening import ListeningClock
from rljob_trainer.gateway.registry import MOST_NUMBERS, NUMBERS, Names
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.servers import MOST_OPEN
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.gateway.wire.routes import API, Routes
from rljob_trainer.machine import free_port
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest, ServedSample
from trainer.gateway.test_routes import Desk, opened

SECONDS = 60.0
LOST = 30
"""Samples that the first gateway never answers."""


class Gateway:
    """One after the other on a volume and a port, each with servers that answer a prompt with its last token, once they may."""

    def __init__(self, root: Path) -> None:
        self._root, self._port, self._runner = root, free_port(), None
        self.url, self.calls = f"http://127.0.0.1:{self._port}", list[str]()
        self.answers = asyncio.Event()
        self.samples = Samples(self._sample, ListeningClock())

    async def start(self) -> None:
        service = GatewayService(ServiceSpec(), self._root)
        self.samples = Samples(self._sample, service.clock)
        app = Routes(service, self.samples, Keys(None), "base").app
        app.middlewares.append(self._counted)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def stop(self) -> None:
        assert self._runner
        await self._runner.cleanup()
        await self.samples.close()

    @web.middleware
    async def _counted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(request.path.removeprefix(API))
        return await handler(request)

    async def _sample(self, request: SampleRequest) -> SampleAnswer:
        await self.answers.wait()
        found = ServedSample(np.array([request.tokens[-1]], "<i4"), np.zeros(1, "<f4"), "stop")
        return SampleAnswer((found,) * request.n)


@asynccontextmanager
async def sampling(root: Path) -> AsyncIterator[tuple[Gateway, Any]]:
    """A gateway, and a sampler of the official SDK's."""
    gateway = Gateway(root)
    await gateway.start()
    client = await asyncio.to_thread(tinker.ServiceClient, base_url=gateway.url, api_key="tml-any")
    try:
        yield gateway, await asyncio.to_thread(client.create_sampling_client, base_model="base")
    finally:
        await asyncio.to_thread(lambda: client.close("success").result(SECONDS))
        await gateway.stop()


async def answer(sampler: Any, token: int) -> list[int]:
    params = types.SamplingParams(max_tokens=1)
    found = await sampler.sample_async(types.ModelInput.from_ints([1, token]), 1, params)
    return list(found.sequences[0].tokens)


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 what the SDK does is no event here
            await asyncio.sleep(0.01)


async def test_the_sdk_waits_for_all_samples_of_a_sampler_by_one_poll(tmp_path: Path) -> None:
    async with sampling(tmp_path) as (gateway, sampler):
        asked = [asyncio.create_task(answer(sampler, token)) for token in range(200)]
        await until(lambda: gateway.samples.waiting == 200 and "retrieve_futures" in gateway.calls)
        assert gateway.calls.count("retrieve_futures") == 1 and "retrieve_future" not in gateway.calls
        gateway.answers.set()
        assert await asyncio.gather(*asked) == [[token] for token in range(200)]
        assert gateway.calls.count("retrieve_future") == 200, "once for each, when it is there"
        await until(lambda: not gateway.samples.held.total())


async def test_the_sdk_asks_again_for_what_a_gateway_that_is_lost_had(tmp_path: Path) -> None:
    """Also when the first of them is much older than the last."""
    async with sampling(tmp_path) as (gateway, sampler):
        asked = [asyncio.create_task(answer(sampler, token)) for token in range(LOST)]
        await until(lambda: gateway.samples.waiting == LOST)
        for _ in range(2):
            await gateway.stop()
            await gateway.start()
            await until(lambda: gateway.samples.waiting == LOST)
        gateway.answers.set()
        assert await asyncio.gather(*asked) == [[token] for token in range(LOST)]
        assert [await answer(sampler, token) for token in range(NUMBERS)] == [[token] for token in range(NUMBERS)]


async def test_the_sdk_says_when_nobody_waits_for_a_sample_any_more(tmp_path: Path) -> None:
    async with sampling(tmp_path) as (gateway, sampler):
        asked = asyncio.create_task(answer(sampler, 1))
        await until(lambda: "retrieve_futures" in gateway.calls)  # the SDK knows the request's name
        asked.cancel()
        await until(lambda: gateway.samples.waiting == 0)


class Sampler:
    """That of a client of the routes, without servers: what is asked wrongly is complete at once, and the rest never."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self.name, self.cursor = desk, f"{desk.session}:sample:0", 0

    async def begin(self) -> None:
        given = {"session_id": self._desk.session, "sampling_session_seq_id": 0, "base_model": "base"}
        assert (await self._desk.post("create_sampling_session", **given)).status == 200

    async def ask(self, seq: int, complete: bool = True) -> str:
        asked = {"sampling_session_id": self.name, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1]}]}}
        count = 0 if complete else 1
        accepted = await self._desk.post("asample", **asked, seq_id=seq, num_samples=count, sampling_params={})
        return str((await accepted.json())["request_id"])

    async def poll(self, copy: int = 0, cursor: int | None = None, retrieved: tuple[str, ...] = ()) -> dict[str, str]:
        """What is complete, at once."""
        target = {"type": "sampling_session", "sampling_session_id": self.name, "cloned_sampler_id": copy}
        cursor = self.cursor if cursor is None else cursor
        given = {"target": target, "prev_cursor": cursor, "timeout": 0, "retrieved_request_ids": retrieved}
        found = await self._desk.post("retrieve_futures", **given)
        assert found.status == 200, await found.text()
        body = await found.json()
        self.cursor = body["cursor"]
        return {completion["request_id"]: completion["state"] for completion in body["completions"]}

    async def fetch(self, name: str) -> int:
        return (await self._desk.post("retrieve_future", request_id=name)).status


@asynccontextmanager
async def sampler_of(root: Path) -> AsyncIterator[Sampler]:
    async with opened(root) as desk:
        await (sampler := Sampler(desk)).begin()
        yield sampler


async def test_a_completion_is_said_until_the_client_has_heard_of_it(tmp_path: Path) -> None:
    async with sampler_of(tmp_path) as sampler:
        first, waiting = await sampler.ask(0), await sampler.ask(1, complete=False)
        assert await sampler.poll(cursor=0) == {first: "failed"}
        assert await sampler.poll(cursor=0) == {first: "failed"}, "the first answer was lost"
        assert await sampler.poll() == {}
        second = await sampler.ask(2)
        assert await sampler.poll() == {second: "failed"} and waiting != second
        assert await sampler.poll() == {}


async def test_what_was_fetched_is_complete_no_more_and_goes_when_the_client_says_that_it_has_it(
    tmp_path: Path,
) -> None:
    async with sampler_of(tmp_path) as sampler:
        name, other = await sampler.ask(0), await sampler.ask(1)
        assert await sampler.fetch(name) == 200
        assert await sampler.poll(cursor=0) == {other: "failed"}
        assert await sampler.fetch(name) == 200, "the answer was lost"
        await sampler.poll(retrieved=(name, "somebody:sample:0:1", "x"))
        assert (await sampler.fetch(name), await sampler.fetch(other)) == (410, 200)


async def test_copies_of_a_sampler_in_other_processes_hear_of_their_own(tmp_path: Path) -> None:
    async with sampler_of(tmp_path) as sampler:
        own, of_copy = await sampler.ask(0), await sampler.ask(7 * COPIES + 1)
        assert await sampler.poll(copy=7, cursor=0) == {of_copy: "failed"}
        assert await sampler.poll(copy=0, cursor=0) == {own: "failed"}


async def test_a_queue_is_kept_while_somebody_waits_or_something_is_complete() -> None:
    completions, name = Completions(), "s:sample:0:1"
    for copy in range(3):
        assert await completions.after(f"s:sample:0:{copy}", 0, 0.0) == ([], completions._first)
    assert not completions._queues
    waiting = [asyncio.create_task(completions.after("s:sample:0:0", 0, seconds)) for seconds in (0.0, SECONDS)]
    await waiting[0]
    completions.add(name, failed=False)
    assert [found.name for found in (await waiting[1])[0]] == [name] and completions._queues
    completions.forget(name)
    assert not completions._queues


async def test_a_client_hears_late_of_an_answer_that_is_not_kept_any_more_and_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.samples.GRACE_SECONDS", -1.0)
    async with opened(tmp_path) as desk:
        await (sampler := Sampler(desk)).begin()
        name = await sampler.ask(0)
        desk.samples.sweep()
        assert await sampler.poll(cursor=0) == {name: "failed"} and await sampler.fetch(name) == 410


async def test_nobody_hears_of_samples_of_another_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        target = {"sampling_session_id": "somebody:sample:0"}
        assert (await desk.post("retrieve_futures", target=target)).status == 404


async def test_all_that_a_lost_gateway_may_have_had_is_said_once_to_who_has_not_heard_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.registry.NUMBERS", 10)
    async with sampler_of(tmp_path) as sampler:
        for seq in range(20):
            await sampler.fetch(await sampler.ask(seq))
        for seq in range(20, 24):
            await sampler.ask(seq, complete=False)
        name, cursor = sampler.name, (await sampler.poll(), sampler.cursor)[1]
    for _ in range(2):
        async with again(tmp_path, name) as sampler:
            lost = await sampler.poll(cursor=cursor)
            assert set(lost) == {f"{name}:{seq}" for seq in range(20, 30)} and set(lost.values()) == {"finished"}
            assert set(await sampler.poll(cursor=0)) == set(lost), "also to one that had heard nothing"
            assert await sampler.fetch(f"{name}:20") == 410
    async with again(tmp_path, name) as sampler:
        new = await sampler.ask(24)
        assert len(lost := await sampler.poll(cursor=cursor)) == 10 and lost[new] == "failed"
        assert await sampler.poll() == {}
        assert await sampler.poll(cursor=cursor) == {}, "it has heard of this gateway"
        await sampler.ask(31, complete=False)
        cursor = (await sampler.poll(), sampler.cursor)[1]
    async with again(tmp_path, name) as sampler:
        assert set(await sampler.poll(cursor=cursor)) == {f"{name}:{seq}" for seq in range(24, 41)}


async def test_of_numbers_with_gaps_a_next_gateway_says_a_bounded_number_and_the_newest(tmp_path: Path) -> None:
    async with sampler_of(tmp_path) as sampler:
        await sampler.ask(0, complete=False)
        newest, name = await sampler.ask(COPIES - 1, complete=False), sampler.name
    async with again(tmp_path, name) as sampler:
        lost = await sampler.poll(cursor=0)
        assert newest in lost and MOST_OPEN < len(lost) == MOST_NUMBERS


@asynccontextmanager
async def again(root: Path, name: str) -> AsyncIterator[Sampler]:
    """The next gateway, and the same sampler."""
    async with opened(root) as desk:
        sampler = Sampler(desk)
        sampler.name = name
        yield sampler


async def test_requests_that_come_together_are_written_down_together(tmp_path: Path) -> None:
    names, writes, queue = Names(tmp_path / "names.log", lambda: None), list[int](), "s:sample:0:0"

    def oldest() -> int:
        writes.append(1)
        return 7

    await names.open("s", "ann", 0.0)
    await asyncio.gather(*(names.number(queue, number, oldest) for number in range(7, 2 * NUMBERS)))
    assert len(writes) == 2
    lost = Names(tmp_path / "names.log", lambda: None).lost[queue]
    assert (lost.first, lost.beyond) == (7, 7 + 2 * NUMBERS)
