"""Every request gets exactly one answer. The servers speak our protocol over real sockets and die on purpose."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from rljob_api.families import ParserNames
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.driver import replicas
from rljob_trainer.driver.pool import MOST_LOST, RolloutPool
from rljob_trainer.wire.completions import MEDIA_TYPE, Completion, encode
from rljob_trainer.wire.rollout_client import GenerationRequest, RequestRefusedError, RolloutClient, Unauthorized
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, UnreadError, unpack_tokens
from rljob_trainer.wire.weights.protocol import GENERATE, INTERRUPT, PARSE, STEP_HEADER, AttemptSuperseded

SAMPLING = Sampling(temperature=1.0, max_tokens=8)
SECONDS = 120
"""Many times what anything takes."""


@dataclass
class Server:
    """Answers a prompt with itself. `dies_at`: which request it takes down with it; `status`: what it answers instead."""

    pod: str
    dies_at: int = -1
    status: int = 200
    finish: str = "stop"
    headers: dict[str, str] = field(default_factory=lambda: {STEP_HEADER: "3"})
    pause: float = 0.01
    frozen: bool = False
    deaf: bool = False
    seen: list[int] = field(default_factory=list)
    most: int = 0
    now: int = 0
    endpoint: RolloutEndpoint = field(init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        application = web.Application()
        application.add_routes([web.post(GENERATE, self.generate), web.get("/rljob/state", self.state)])
        application.add_routes([web.post(INTERRUPT, self.interrupt), web.post(PARSE, self.parse)])
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.endpoint = RolloutEndpoint(pod=self.pod, pod_uid=f"uid-{self.pod}", url=f"http://127.0.0.1:{port}")
        try:
            yield self
        finally:
            await runner.cleanup()

    async def thaw(self) -> None:
        while self.frozen:  # noqa: ASYNC110 tests set it from outside
            await asyncio.sleep(0.1)

    async def state(self, request: web.Request) -> web.Response:
        await self.thaw()
        return web.json_response({"attempt": 1, "policy_step": 1, "digest": ""})

    async def interrupt(self, request: web.Request) -> web.Response:
        """From now on every answer is cut short."""
        if self.deaf:
            await asyncio.sleep(60)
        self.finish, self.frozen = "abort", False
        return web.json_response({})

    async def parse(self, request: web.Request) -> web.Response:
        """It reads its own name."""
        await self.thaw()
        if self.status != 200:
            return web.Response(status=self.status)
        return web.json_response(Parsed(self.pod).body())

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["prompt"] = unpack_tokens(body["prompt"])
        self.seen.append(body["prompt"][0])
        self.now += body["n"]
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.pause * random.random())
            await self.thaw()
            if 0 <= self.dies_at <= len(self.seen):
                assert request.transport is not None
                request.transport.abort()
            if self.status != 200:
                return web.json_response({"error": "no", "code": "why", "attempt": 7}, status=self.status)
            drawn = Completion(body["prompt"], [-1.0], self.finish)
            return web.Response(
                body=b"".join(encode([drawn] * body["n"]).pieces), content_type=MEDIA_TYPE, headers=self.headers
            )
        finally:
            self.now -= body["n"]


@asynccontextmanager
async def pool_of(*servers: Server, samples_in_flight: int = 8) -> AsyncIterator[RolloutPool]:
    pool = RolloutPool("token", 1, 1, samples_in_flight, lambda: None)
    async with contextmanagers(servers):
        for server in servers:
            await admit(pool, server)
        try:
            yield pool
        finally:
            await pool.close()


async def admit(pool: RolloutPool, server: Server) -> None:
    """The server is listed, and has just been brought to the current policy."""
    await pool.follow([*(e for e in pool.listed if e != server.endpoint), server.endpoint])
    await pool.published(3, [server.endpoint], {})


@asynccontextmanager
async def contextmanagers(servers: tuple[Server, ...]) -> AsyncIterator[None]:
    if not servers:
        yield
        return
    async with servers[0].running(), contextmanagers(servers[1:]):
        yield


async def ask(pool: RolloutPool, count: int, n: int = 2) -> list[int]:
    """The prompts that were answered, each with n responses."""
    answers = await asyncio.wait_for(
        asyncio.gather(*(pool.generate(GenerationRequest((i,), n, SAMPLING, i)) for i in range(count))), SECONDS
    )
    assert all(len(group) == n and {g.policy_step for g in group} == {3} for group in answers)
    return [group[0].tokens[0] for group in answers]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 tests and servers change it
            await asyncio.sleep(0.01)


async def test_requests_are_spread_and_bounded() -> None:
    servers = Server("a"), Server("b")
    async with pool_of(*servers) as pool:
        assert await ask(pool, 60) == list(range(60))
    assert all(s.most <= 8 and len(s.seen) > 10 for s in servers)
    assert pool.redispatched == 0


async def test_a_refused_token_is_named_as_what_it_is() -> None:
    async with pool_of(Server("bad", status=401)) as pool:
        (endpoint,) = pool.current
        async with RolloutClient(endpoint, "another", 1) as client:
            with pytest.raises(Unauthorized, match="refuses this job's token .401."):
                await client.generate(GenerationRequest([1], 1, Sampling(), 0))


@pytest.mark.parametrize(
    "fault",
    [{"dies_at": 5}, {"status": 503}, {"status": 500}, {"status": 401}, {"finish": "abort"}, {"headers": {}}],
    ids=["it dies", "no weights", "a broken engine", "another job has its address", "an abort", "an update"],
)
async def test_a_lost_replica_loses_no_answer_and_doubles_none(fault: dict) -> None:
    good, bad = Server("good"), Server("bad", **fault)
    async with pool_of(bad, good) as pool:
        assert await ask(pool, 60) == list(range(60))
        assert [r.pod for r in pool.current] == ["good"]
        assert pool.redispatched > 0 and pool.problem(bad.endpoint)
    assert set(Counter(good.seen).values()) == {1}, "no request went to the living replica twice"


async def test_when_all_are_lost_requests_wait_for_a_newcomer() -> None:
    async with pool_of(Server("dead", dies_at=0)) as pool, Server("new").running() as newcomer:
        asked = asyncio.create_task(ask(pool, 20))
        await until(lambda: not pool.current)
        assert not asked.done()
        await admit(pool, newcomer)
        assert await asked == list(range(20))


async def test_a_newcomer_gets_what_is_still_waiting() -> None:
    async with pool_of(Server("slow", pause=0.2)) as pool, Server("new").running() as newcomer:
        asked = asyncio.create_task(ask(pool, 40))
        await asyncio.sleep(0.05)
        await admit(pool, newcomer)
        assert await asked == list(range(40))
        assert len(newcomer.seen) > 10


async def test_a_dismissed_replicas_requests_are_answered_by_another() -> None:
    frozen, good = Server("frozen", frozen=True), Server("good")
    async with pool_of(frozen, good) as pool:
        asked = asyncio.create_task(ask(pool, 20))
        await until(lambda: bool(frozen.seen))
        assert not asked.done()
        await pool.follow([good.endpoint])
        assert await asked == list(range(20))
        frozen.frozen = False


async def test_a_replica_that_leaves_before_a_request_has_gone_out_is_as_lost_as_one_that_leaves_after() -> None:
    async with pool_of(Server("gone"), samples_in_flight=2) as pool, Server("new").running() as newcomer:
        assert len(pool.current) == 1
        asked = asyncio.create_task(ask(pool, 1))
        for _ in range(2):  # it has a place by then, and has not been sent
            await asyncio.sleep(0)
        await pool.follow([])
        await admit(pool, newcomer)
        assert await asked == [0]
        assert newcomer.seen == [0] and pool.redispatched == 1


async def test_a_frozen_replica_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr("rljob_trainer.wire.rollout_client.PROBE_SECONDS", 0.5)
    frozen, good = Server("frozen", frozen=True), Server("good")
    async with pool_of(frozen, good) as pool:
        assert await ask(pool, 20) == list(range(20))
        assert pool.problem(frozen.endpoint) == "left 3 questions unanswered"
        frozen.frozen = False


RESPONSE = ParseRequest([1], [2], ended=False, parsers=ParserNames("hermes", ""))


async def test_what_a_response_says_is_read_by_whichever_server_is_there() -> None:
    async with pool_of(Server("failing", status=500)) as pool, Server("new").running() as newcomer:
        read = asyncio.create_task(pool.parse(RESPONSE))
        await until(lambda: not pool.current)
        assert not read.done(), "it waits while there is no server"
        await admit(pool, newcomer)
        assert (await asyncio.wait_for(read, SECONDS)).content == "new"
        assert pool.redispatched == 0, "nothing was generated twice"


async def test_a_response_that_loses_every_server_stays_unread() -> None:
    servers = [Server(f"failing-{i}", status=500) for i in range(MOST_LOST + 1)]
    async with pool_of(*servers) as pool:
        with pytest.raises(UnreadError, match=f"{MOST_LOST} servers were lost"):
            await asyncio.wait_for(pool.parse(RESPONSE), SECONDS)
        assert len(pool.current) == 1


async def test_a_server_that_takes_too_long_to_read_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_trainer.wire.rollout_client.PARSE_SECONDS", 0.2)
    slow = Server("slow", frozen=True)
    async with pool_of(slow) as pool:
        with pytest.raises(UnreadError, match="slow took longer"):
            await asyncio.wait_for(pool.parse(RESPONSE), SECONDS)
        assert pool.current == [slow.endpoint]
        slow.frozen = False


async def test_a_request_to_read_that_is_wrong_is_refused_and_loses_no_server() -> None:
    async with pool_of(Server("a", status=400)) as pool:
        with pytest.raises(RequestRefusedError):
            await pool.parse(RESPONSE)
        assert len(pool.current) == 1


async def test_a_replica_that_was_admitted_again_is_used_again() -> None:
    server = Server("a", dies_at=3)
    async with pool_of(server) as pool:
        asked = asyncio.create_task(ask(pool, 20))
        await until(lambda: not pool.current)
        server.dies_at = -1
        await admit(pool, server)
        assert await asked == list(range(20))
        assert pool.current == [server.endpoint]


async def test_a_request_that_is_wrong_fails_at_once() -> None:
    async with pool_of(Server("a", status=400)) as pool:
        with pytest.raises(RequestRefusedError, match="400") as refused:
            await pool.generate(GenerationRequest((1,), 1, SAMPLING, 0))
        assert refused.value.code == "why"
        assert len(pool.current) == 1


async def test_a_replaced_attempt_learns_it() -> None:
    async with pool_of(Server("a", status=409)) as pool:
        with pytest.raises(AttemptSuperseded, match="attempt 1 is over: attempt 7"):
            await pool.generate(GenerationRequest((1,), 1, SAMPLING, 0))


async def test_a_cancelled_request_gives_its_place_back() -> None:
    server = Server("a", frozen=True)
    async with pool_of(server, samples_in_flight=2) as pool:
        first = asyncio.create_task(pool.generate(GenerationRequest((1,), 2, SAMPLING, 0)))
        await until(lambda: server.seen == [1])
        first.cancel()
        server.frozen = False
        assert await ask(pool, 5) == list(range(5))


async def test_an_interruption_answers_what_is_in_flight_and_what_waits_and_the_pool_goes_on() -> None:
    server = Server("a", frozen=True)
    async with pool_of(server, samples_in_flight=4) as pool:
        asked = [asyncio.create_task(pool.generate(GenerationRequest((i,), 2, SAMPLING, i))) for i in range(5)]
        await until(lambda: len(server.seen) == 2)
        await asyncio.wait_for(pool.interrupt(), SECONDS)
        answers = await asyncio.gather(*asked)
        assert [[g.finish_reason for g in group] for group in answers] == [["abort"] * 2] * 2 + [[]] * 3
        assert len(server.seen) == 2 and pool.redispatched == 0
        server.finish = "stop"
        assert await ask(pool, 5) == list(range(5))


async def test_who_asks_for_the_rest_of_a_response_is_answered_when_the_interruption_is_over() -> None:
    server = Server("a", frozen=True)
    async with pool_of(server) as pool:
        await asyncio.wait_for(pool.resumed(), SECONDS)

        async def whole() -> list[str]:
            reasons = []
            while not reasons or reasons[-1] == "abort":
                await pool.resumed()
                reasons += [g.finish_reason for g in await pool.generate(GenerationRequest((0,), 1, SAMPLING, 0))]
            return reasons

        asked = asyncio.create_task(whole())
        await until(lambda: len(server.seen) == 1)
        interrupting = asyncio.create_task(pool.interrupt())
        server.finish = "abort"
        await asyncio.wait_for(interrupting, SECONDS)
        server.finish = "stop"
        assert await asyncio.wait_for(asked, SECONDS) == ["abort", "stop"] and server.seen == [0, 0]


async def test_an_interruption_does_not_wait_for_a_replica_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rljob_trainer.wire.rollout_client.PROBE_SECONDS", 2.0)
    deaf, good = Server("deaf", frozen=True, deaf=True), Server("good", frozen=True)
    async with pool_of(deaf, good) as pool:
        asked = [asyncio.create_task(pool.generate(GenerationRequest((i,), 2, SAMPLING, i))) for i in range(2)]
        await until(lambda: len(deaf.seen) == len(good.seen) == 1)
        await asyncio.wait_for(pool.interrupt(), SECONDS)
        assert sorted(map(len, await asyncio.gather(*asked))) == [0, 2], "what the deaf one had begun is lost"
        assert [r.pod for r in pool.current] == ["good"]
        deaf.frozen = False
