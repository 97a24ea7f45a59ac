"""Samples of clients, and the servers that draw them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway import samples, servers
from rljob_trainer.gateway.clients import BusyError
from rljob_trainer.gateway.listening import ListeningClock
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.gateway.registry import seed_of
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.gateway.service import UnknownError
from rljob_trainer.machine import free_port
from rljob_trainer.wire.rollout_client import FinishReason, ReplicaLost, RolloutClient
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest, ServedSample
from rljob_trainer.wire.service import WorkFailure
from rljob_trainer.wire.weights.protocol import SAMPLE, STATE


class Server:
    """A rollout server: it answers samples with its name, or fails as an engine that has died does. An update aborts samples."""

    def __init__(self, name: str) -> None:
        self.name, self.dead, self.asked, self.port = name, False, 0, free_port()
        self.running = 0
        """Samples that wait for `may_answer`."""
        self.step: int | None = None
        """Of the policy that it serves."""
        self.endpoint = RolloutEndpoint(pod=name, pod_uid=name, url=f"http://127.0.0.1:{self.port}")
        self._runner: web.AppRunner | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(SAMPLE, self._sample)
        app.router.add_get(STATE, self._state)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _state(self, _: web.Request) -> web.Response:
        return web.json_response({"attempt": 1, "policy_step": self.step, "digest": ""})

    async def _sample(self, request: web.Request) -> web.Response:
        self.asked += 1
        asked, step = SampleRequest.read(await request.json()), self.step
        self.running += 1
        await self.may_answer.wait()
        self.running -= 1
        if self.dead or list(asked.tokens) == POISON:
            return web.json_response({"error": "EngineDeadError"}, status=500)
        if asked.policy_step != step:
            return web.json_response({"error": f"policy {step} is served here"}, status=503)
        ended: FinishReason = "stop" if step == self.step else "abort"
        found = ServedSample(np.array([ord(self.name)], "<i4"), np.zeros(1, "<f4"), ended)
        return web.json_response(SampleAnswer((found,)).body())


@contextlib.asynccontextmanager
async def listed(*servers: Server, policies: ServedPolicies | None = None) -> AsyncIterator[SamplingServers]:
    known = SamplingServers("token", policies)
    known.follow(1, [server.endpoint for server in servers])
    try:
        yield known
    finally:
        for server in servers:
            await server.stop()


REQUEST = SampleRequest(tokens=[1], n=1, seed=0, max_tokens=1)
POISON = [666]
"""A prompt with which servers fail."""


async def test_samples_wait_for_a_listed_server_that_nobody_reaches_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 0.001)
    dead = Server("a")
    tries, asked = 0, RolloutClient.sample

    async def counted(self: RolloutClient, request: SampleRequest) -> SampleAnswer:
        nonlocal tries
        tries += 1
        if tries == 10 * servers.MOST_SENT:
            await dead.start()
        return await asked(self, request)

    monkeypatch.setattr(RolloutClient, "sample", counted)
    async with listed(dead) as known:
        answer = await asyncio.wait_for(known.sample(REQUEST), 60)
    assert answer.samples[0].tokens == [ord("a")] and tries >= 10 * servers.MOST_SENT


async def test_a_server_that_is_gone_gets_no_samples_while_another_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 600.0)
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
    monkeypatch.setattr(servers, "most_open_files", lambda: 8)
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
    monkeypatch.setattr(servers, "RETRY_SECONDS", 0.001)
    dead = Server("a")
    dead.dead = True
    await dead.start()
    async with listed(dead) as known:
        with pytest.raises(ReplicaLost, match="EngineDeadError"):
            await asyncio.wait_for(known.sample(REQUEST), 60)
        assert dead.asked == servers.MOST_SENT


async def update(policies: ServedPolicies, *servers: Server) -> int:
    """Have the servers make the update that is due, once one is. How many it has."""
    async with asyncio.timeout(60):
        while not policies.due:  # noqa: ASYNC110 the desk asks for it, too
            await asyncio.sleep(0.01)
    work = policies.next_update()
    updated = [server for server in servers if server.name in {asked["podUid"] for asked in work.servers}]
    for server in updated:
        server.step = work.step
    policies.served(work, [server.name for server in updated], {})
    return len(updated)


@contextlib.asynccontextmanager
async def up_to_date(server: Server, policies: ServedPolicies) -> AsyncIterator[SamplingServers]:
    """A server that has the policy, and has answered a sample from it."""
    await server.start()
    async with listed(server, policies=policies) as known:
        first = asyncio.create_task(known.sample(REQUEST))
        await update(policies, server)
        await first
        yield known


async def has(server: Server, running: int) -> None:
    async with asyncio.timeout(60):
        while server.running != running:  # noqa: ASYNC110 what a server hears is no event here
            await asyncio.sleep(0.01)


async def test_a_request_that_fails_costs_its_server_no_update_and_others_there_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 0.001)
    server, policies = Server("a"), ServedPolicies("base", lambda: None)
    async with up_to_date(server, policies) as known:
        server.may_answer.clear()
        other = asyncio.create_task(known.sample(REQUEST))
        await has(server, running=1)
        server.may_answer.set()
        with pytest.raises(ReplicaLost, match="EngineDeadError"):
            await asyncio.wait_for(known.sample(replace(REQUEST, tokens=POISON)), 60)
        assert not policies.due and policies.serving(server.endpoint)
        assert (await asyncio.wait_for(other, 60)).samples
        assert server.asked == 2 + servers.MOST_SENT


async def test_a_server_that_has_another_policy_than_it_should_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 0.001)
    server, policies = Server("a"), ServedPolicies("base", lambda: None)
    async with up_to_date(server, policies) as known:
        server.step = None
        again = asyncio.create_task(known.sample(REQUEST))
        await update(policies, server)
        assert (await asyncio.wait_for(again, 60)).samples


async def test_samples_that_updates_abort_are_asked_for_again_however_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "RETRY_SECONDS", 600.0)
    server, policies = Server("a"), ServedPolicies("base", lambda: None)
    await server.start()
    async with listed(server, policies=policies) as known:
        server.may_answer.clear()
        asked = [asyncio.create_task(known.sample(REQUEST))]
        await update(policies, server)
        for count in range(1, 2 * servers.MOST_SENT):
            await has(server, running=count)
            policies.begin()  # other ranks, which update the server when somebody asks for a sample
            asked.append(asyncio.create_task(known.sample(REQUEST)))
            await update(policies, server)
            server.may_answer.set()
            server.may_answer.clear()  # those that come later wait
        await has(server, running=len(asked))
        server.may_answer.set()
        assert len(await asyncio.wait_for(asyncio.gather(*asked), 60)) == len(asked)


async def test_samples_that_failed_and_that_nobody_fetches_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(SamplingServers("token").sample, ListeningClock())
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

    waiting = Samples(sample, ListeningClock())
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


async def test_there_are_always_places_for_another_clients_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.samples.MOST_OPEN", 24)
    waiting, clients = Samples(SamplingServers("token").sample, ListeningClock()), ("ann", "bob", "eve")

    async def fill(client: str, first: int) -> int:
        """Have a client ask until it is refused. How often it was not."""
        for asked in count():
            try:
                waiting.ask(client, f"{client}:sample:0:{first + asked}", REQUEST)
            except BusyError:
                return asked
            await asyncio.sleep(0)
        raise AssertionError

    assert [await fill(client, 0) for client in clients] == [12, 6, 3]
    assert [await fill(client, 100) for client in clients] == [0, 0, 0]
    for client in clients[1:]:
        await waiting.end(client)
    assert await fill("ann", 100) == 0, "it has half of the places"
    await waiting.end("ann")
    assert [await fill(client, 200) for client in clients[1:]] == [12, 6]
    await waiting.close()


async def test_ten_thousand_samples_wait_at_a_time_and_each_gets_its_own_answer() -> None:
    may_answer = asyncio.Event()

    async def sample(request: SampleRequest) -> SampleAnswer:
        await may_answer.wait()
        return SampleAnswer((ServedSample(np.array(request.tokens, "<i4"), np.zeros(1, "<f4"), "stop"),))

    waiting = Samples(sample, ListeningClock())
    names = [f"s:sample:0:{i}" for i in range(10_000)]
    for number, name in enumerate(names):
        waiting.ask("ann", name, replace(REQUEST, tokens=[number]))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="10000 samples of this client are waiting"):
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


@pytest.mark.parametrize("error", [KeyError("attempt"), TypeError("no number"), OSError("too many open files")])
async def test_an_answer_that_cannot_be_read_fails_its_sample_and_is_not_asked_for_for_ever(error: Exception) -> None:
    """The SDK repeats at once what is answered by a status of 5xx."""

    async def broken(_: SampleRequest) -> SampleAnswer:
        raise error

    asked = Samples(broken, ListeningClock())
    asked.ask("ann", "s:sample:0:1", REQUEST)
    found = await asked.result("ann", "s:sample:0:1", 5.0)
    assert isinstance(found, WorkFailure) and found.category == "server" and type(error).__name__ in found.message


async def test_a_sample_that_is_asked_for_again_after_it_was_cancelled_is_complete_when_it_has_an_answer() -> None:
    may_answer = asyncio.Event()

    async def slow(_: SampleRequest) -> SampleAnswer:
        await may_answer.wait()
        return SampleAnswer(())

    asked, name = Samples(slow, ListeningClock()), "s:sample:0:1"
    asked.ask("ann", name, REQUEST)
    await asyncio.sleep(0)
    asked.cancel("ann", name)
    asked.ask("ann", name, REQUEST)
    assert await asked.completions.after("s:sample:0:0", 0, 0.01) == ([], asked.completions._first)
    may_answer.set()
    (completed,), _ = await asked.completions.after("s:sample:0:0", 0, 5.0)
    assert (completed.name, completed.failed) == (name, False)


def test_samples_for_which_no_client_named_a_seed_have_none_in_common() -> None:
    """vLLM adds a sample's index to its request's seed. Of one prompt, equal seeds are equal samples."""
    seeds = [seed_of(f"0123456789abcdef:sample:0:{request}") + i for request in range(10_000) for i in range(16)]
    assert len({*seeds}) == len(seeds) and max(seeds) < 2**62
