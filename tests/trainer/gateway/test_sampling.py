"""Samples of clients, and the servers that draw them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway import samples
from rljob_trainer.gateway.clients import BusyError
from rljob_trainer.gateway.samples import Samples, SamplingServers
from rljob_trainer.gateway.service import UnknownError
from rljob_trainer.machine import free_port
from rljob_trainer.wire.rollout_client import ReplicaLost, RolloutClient
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest, ServedSample
from rljob_trainer.wire.service import WorkFailure
from rljob_trainer.wire.weights.protocol import SAMPLE


class Server:
    """A rollout server: it answers samples with its name, or fails as an engine that has died does."""

    def __init__(self, name: str) -> None:
        self.name, self.dead, self.asked, self.port = name, False, 0, free_port()
        self.endpoint = RolloutEndpoint(pod=name, pod_uid=name, url=f"http://127.0.0.1:{self.port}")
        self._runner: web.AppRunner | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(SAMPLE, self._sample)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _sample(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.may_answer.wait()
        if self.dead:
            return web.json_response({"error": "EngineDeadError"}, status=500)
        found = ServedSample(np.array([ord(self.name)], "<i4"), np.zeros(1, "<f4"), "stop")
        return web.json_response(SampleAnswer((found,)).body())


@contextlib.asynccontextmanager
async def listed(*servers: Server) -> AsyncIterator[SamplingServers]:
    known = SamplingServers("token")
    known.follow(1, [server.endpoint for server in servers])
    try:
        yield known
    finally:
        for server in servers:
            await server.stop()


REQUEST = SampleRequest(tokens=[1], n=1, seed=0, max_tokens=1)


async def test_samples_wait_for_a_listed_server_that_nobody_reaches_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samples, "RETRY_SECONDS", 0.001)
    dead = Server("a")
    tries, asked = 0, RolloutClient.sample

    async def counted(self: RolloutClient, request: SampleRequest) -> SampleAnswer:
        nonlocal tries
        tries += 1
        if tries == 10 * samples.MOST_SENT:
            await dead.start()
        return await asked(self, request)

    monkeypatch.setattr(RolloutClient, "sample", counted)
    async with listed(dead) as known:
        answer = await asyncio.wait_for(known.sample(REQUEST), 60)
    assert answer.samples[0].tokens == [ord("a")] and tries >= 10 * samples.MOST_SENT


async def test_a_server_that_is_gone_gets_no_samples_while_another_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "RETRY_SECONDS", 600.0)
    gone, dead, alive = Server("a"), Server("b"), Server("c")
    dead.dead = True
    await dead.start()
    await alive.start()
    async with listed(gone, dead, alive) as known:
        answers = await asyncio.wait_for(asyncio.gather(*(known.sample(REQUEST) for _ in range(20))), 60)
        for _ in range(5):
            answers.append(await known.sample(REQUEST))
        assert {answer.samples[0].tokens[0] for answer in answers} == {ord("c")}
        assert dead.asked <= 25 and alive.asked == 25


async def test_no_more_samples_are_sent_at_a_time_than_files_can_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "most_open_files", lambda: 8)
    server = Server("a")
    server.may_answer.clear()
    await server.start()
    async with listed(server) as known:
        asked = [asyncio.create_task(known.sample(REQUEST)) for _ in range(20)]
        async with asyncio.timeout(60):
            while server.asked < 4:  # noqa: ASYNC110 what a server hears is no event here
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert server.asked == 4
        asked.pop().cancel()
        server.may_answer.set()
        assert len(await asyncio.wait_for(asyncio.gather(*asked), 60)) == 19


async def test_a_request_with_which_server_after_server_dies_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "RETRY_SECONDS", 0.001)
    dead = Server("a")
    dead.dead = True
    await dead.start()
    async with listed(dead) as known:
        with pytest.raises(ReplicaLost, match="EngineDeadError"):
            await asyncio.wait_for(known.sample(REQUEST), 60)
        assert dead.asked == samples.MOST_SENT


async def test_samples_that_failed_and_that_nobody_fetches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(SamplingServers("token").sample)
    samples.ask("ann", "s:sample:0:1", WorkFailure(message="no such thing"))
    monkeypatch.setattr("rljob_trainer.gateway.samples.GRACE_SECONDS", -1.0)
    await asyncio.sleep(0)
    samples.sweep()
    with pytest.raises(UnknownError):
        await samples.result("ann", "s:sample:0:1", 0.0)


async def test_answers_that_were_fetched_make_room_for_newer_ones_of_their_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = samples.REQUEST_BYTES + 8 + 400
    monkeypatch.setattr(samples, "MOST_ANSWERS", 2 * one + 100)
    answer = SampleAnswer((ServedSample(np.zeros(50, "<i4"), np.zeros(50, "<f4"), "stop"),))

    async def sample(request: SampleRequest) -> SampleAnswer:
        return answer

    waiting = Samples(sample)
    names = [f"s:sample:0:{i}" for i in range(8)]
    for name in names:
        client = "ann" if name in names[:4] else "bob"
        waiting.ask(client, name, REQUEST)
        found = await waiting.result(client, name, 60.0)
        assert found is answer
    assert waiting.held == {"ann": 2 * one, "bob": 2 * one}
    with pytest.raises(UnknownError):
        await waiting.result("ann", names[0], 0.0)
    assert await waiting.result("ann", names[3], 0.0) is answer


async def test_ten_thousand_samples_wait_at_a_time_and_each_gets_its_own_answer() -> None:
    may_answer = asyncio.Event()

    async def sample(request: SampleRequest) -> SampleAnswer:
        await may_answer.wait()
        return SampleAnswer((ServedSample(np.array(request.tokens, "<i4"), np.zeros(1, "<f4"), "stop"),))

    waiting = Samples(sample)
    names = [f"s:sample:0:{i}" for i in range(10_000)]
    for number, name in enumerate(names):
        waiting.ask("ann", name, replace(REQUEST, tokens=[number]))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="10000 requests for samples are waiting"):
        waiting.ask("ann", "s:sample:0:10000", REQUEST)
    may_answer.set()
    found = [await waiting.result("ann", name, 60.0) for name in names]
    assert [int(answer.samples[0].tokens[0]) for answer in found if isinstance(answer, SampleAnswer)] == [
        *range(10_000)
    ]
    assert waiting.waiting == 0
    for name in names:
        waiting.fetched("ann", name)
    assert waiting.held == {"ann": 0}
    waiting.ask("ann", "s:sample:0:10000", REQUEST)
    assert isinstance(await waiting.result("ann", "s:sample:0:10000", 60.0), SampleAnswer)
