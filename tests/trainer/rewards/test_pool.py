"""Rewards from the servers of a pool, against real servers in this process: balance, losses, waiting; and what a judge is asked and answers."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.model import RewardSpec
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest, ServiceDown
from rljob_trainer.rewards.vllm_server import AT_ONCE, REFUSALS, RETRIES, Pool, Pools
from trainer.rewards.serving import Answering

CASE = RewardRequest("1+1=", "2", "2", "sum", tokens=(5, 6, 7, 1))
JUDGE = {"prompt": "Q: {prompt} A: {response} Right: {answer} {x}", "score": r"Score: (\S+)"}
SECONDS = 60
"""Many times what anything takes."""


def said(text: object) -> dict:
    return {"choices": [{"message": {"content": text}}]}


class Server(Answering):
    """Of a pool. Answers with `answer`: JSON, a status, or None for a hang-up."""

    paths = ["/pooling", "/v1/chat/completions"]

    def __init__(self, answer: object, delay: float = 0.0):
        self.answer, self.delay = answer, delay
        self.bodies: list[dict] = []
        self.tokens: set[str] = set()
        self.now, self.most = 0, 0

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.tokens.add(request.headers.get("Authorization", ""))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.delay)
        self.now -= 1
        if self.answer is None:
            request.transport.close()
        if isinstance(self.answer, int):
            return web.Response(status=self.answer, text="no")
        return web.json_response(self.answer)


class Job:
    """A reward manager whose pool `judge` has the servers that `list` names."""

    def __init__(self, seconds: float = 5.0, **vllm: object) -> None:
        self.pools = Pools(["judge"], "secret")
        spec = RewardSpec.model_validate({"vllm": {"pool": "judge"} | vllm, "timeoutSeconds": seconds})
        self.manager = RewardManager([spec], self.pools)

    async def __aenter__(self) -> "Job":
        await self.manager.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.stop()

    def list(self, *servers: Server | str) -> None:
        urls = [s if isinstance(s, str) else s.url for s in servers]
        self.pools.follow({"judge": [RolloutEndpoint(pod=u, pod_uid=u, url=u) for u in urls]})

    async def score(self, case: RewardRequest = CASE) -> float:
        return (await self.manager.score(case)).score

    async def fails(self) -> RewardFailed:
        with pytest.raises(RewardFailed) as caught:
            await self.score()
        return caught.value


async def with_servers(check: Callable, *servers: Server, **job: object) -> None:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        await check(await stack.enter_async_context(Job(**job)), *servers)


async def test_requests_are_spread_over_the_servers_and_carry_the_jobs_token() -> None:
    async def check(job: Job, one: Server, other: Server) -> None:
        job.list(one, other)
        assert await asyncio.gather(*(job.score() for _ in range(10))) == [0.5] * 10
        assert len(one.bodies) == len(other.bodies) == 5
        assert one.tokens == {"Bearer secret"} and one.bodies[0]["input"] == [5, 6, 7, 1]

    await with_servers(check, *(Server({"data": [{"data": [0.5]}]}, delay=0.1) for _ in range(2)))


async def test_one_server_is_not_flooded() -> None:
    async def check(job: Job, server: Server) -> None:
        job.list(server)
        await asyncio.gather(*(job.score() for _ in range(2 * AT_ONCE + 1)))
        assert server.most == AT_ONCE

    await with_servers(check, Server({"data": [{"data": [0.5]}]}, delay=0.2))


async def test_a_server_that_is_free_again_wakes_one_request_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, looked, order, count = Pool("judge"), 0, [], 40 * AT_ONCE
    least_loaded = Pool._least_loaded

    def counted(self: Pool) -> str | None:
        nonlocal looked
        looked += 1
        return least_loaded(self)

    async def request(number: int) -> None:
        async with pool.server():
            await asyncio.sleep(0)
            order.append(number)

    monkeypatch.setattr(Pool, "_least_loaded", counted)
    pool.follow([RolloutEndpoint(pod=u, pod_uid=u, url=u) for u in ("a", "b")])
    await asyncio.gather(*map(request, range(count)))
    assert order == [*range(count)] and looked <= 4 * count


@pytest.mark.parametrize("late", [False, True])
async def test_a_request_that_is_given_up_keeps_no_server(late: bool) -> None:
    """`late`: its turn has come, and it has not seen so."""
    pool = Pool("judge")
    pool.follow([RolloutEndpoint(pod="a", pod_uid="a", url="a")])

    async def all_at_once() -> AsyncExitStack:
        stack = AsyncExitStack()
        for _ in range(AT_ONCE):
            await stack.enter_async_context(pool.server())
        return stack

    async with await all_at_once() as held:
        given_up = asyncio.create_task(all_at_once())
        await asyncio.sleep(0)
        if late:
            await held.aclose()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
    assert given_up.cancelled()
    async with await asyncio.wait_for(all_at_once(), SECONDS):
        pass


async def test_a_request_waits_for_the_first_server_longer_than_its_time_limit() -> None:
    async def check(job: Job, server: Server) -> None:
        asked = asyncio.create_task(job.score())
        await asyncio.sleep(0.4)  # twice the time limit of a request
        assert not asked.done() and not job.pools.ready
        job.list(server)
        assert await asked == 0.5 and job.pools.ready

    await with_servers(check, Server({"data": [{"data": [0.5]}]}), seconds=0.2)


@pytest.mark.parametrize("how", ["gone", "hangs up"])
async def test_a_lost_server_costs_no_sample(how: str) -> None:
    async def check(job: Job, lost: Server, other: Server) -> None:
        job.list("http://127.0.0.1:9" if how == "gone" else lost, other)
        assert await asyncio.gather(*(job.score() for _ in range(6))) == [0.5] * 6

    await with_servers(check, Server(None), Server({"data": [{"data": [0.5]}]}))


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_whoever_has_the_address_of_a_lost_server_costs_no_sample(status: int) -> None:
    async def check(job: Job, stranger: Server, other: Server) -> None:
        job.list(stranger, other)
        assert await asyncio.gather(*(job.score() for _ in range(4))) == [0.5] * 4
        assert stranger.bodies

    await with_servers(check, Server(status), Server({"data": [{"data": [0.5]}]}))


async def test_a_server_that_holds_another_token_is_named_until_it_takes_ours_and_costs_no_sample() -> None:
    async def check(job: Job, server: Server) -> None:
        named = asyncio.Event()
        job.pools.wake = lambda: named.set() if job.pools.unauthorized else None
        job.list(server)
        asked = asyncio.create_task(job.score())
        await asyncio.wait_for(named.wait(), 60)
        assert len(server.bodies) == REFUSALS and len(job.pools.unauthorized) == 1
        server.answer = {"data": [{"data": [0.5]}]}
        assert await asked == 0.5 and job.pools.unauthorized == []

    await with_servers(check, Server(401))


async def test_the_only_server_may_be_started_again_during_a_request() -> None:
    async def check(job: Job, server: Server) -> None:
        server.answer = None
        job.list(server)
        asked = asyncio.create_task(job.score())
        async with asyncio.timeout(SECONDS):
            while server.now or not server.bodies:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        server.answer = {"data": [{"data": [0.5]}]}
        assert await asked == 0.5 and len(server.bodies) == 2

    await with_servers(check, Server(None))


async def test_a_server_that_refuses_fails_the_sample_and_names_the_pool() -> None:
    async def check(job: Job, server: Server) -> None:
        job.list(server)
        failed = await job.fails()
        assert (failed.kind, failed.field, failed.target) == ("service", "spec.rewards[0].vllm.pool", "judge")
        assert isinstance(failed.as_error(), ServiceDown) and "status 400" in failed.reason and len(server.bodies) == 1

    await with_servers(check, Server(400))


async def test_errors_of_servers_are_retried_a_few_times_elsewhere() -> None:
    async def check(job: Job, *servers: Server) -> None:
        job.list(*servers)
        failed = await job.fails()
        assert failed.kind == "service" and f"asked {RETRIES + 1} times" in failed.reason
        assert {len(server.bodies) for server in servers} == {1}

    await with_servers(check, *(Server(500) for _ in range(RETRIES + 1)))


async def test_a_slow_server_is_a_failed_reward() -> None:
    async def check(job: Job, server: Server) -> None:
        job.list(server)
        assert (await job.fails()).kind == "timeout"

    await with_servers(check, Server(said("Score: 1"), delay=1.0), seconds=0.2, judge=JUDGE)


async def test_a_judge_is_asked_in_words_and_its_last_score_counts() -> None:
    async def check(job: Job, server: Server) -> None:
        job.list(server)
        assert await job.score(RewardRequest("1+1=", "{answer}", "2", "sum")) == 0.75
        (body,) = server.bodies
        assert body["messages"] == [{"role": "user", "content": "Q: 1+1= A: {answer} Right: 2 {x}"}]
        assert (body["temperature"], body["max_tokens"]) == (0.0, 1024)

    await with_servers(check, Server(said("Score: 0 at first. Score: 0.75")), judge=JUDGE)


@pytest.mark.parametrize(
    "answer", [said("Very good."), said("Score: high"), said("Score: nan"), said(None), {"choices": []}]
)
async def test_an_answer_without_a_number_is_a_failed_reward_and_no_zero(answer: object) -> None:
    async def check(job: Job, server: Server) -> None:
        job.list(server)
        assert (await job.fails()).kind == "value"

    await with_servers(check, Server(answer), judge=JUDGE)


async def test_a_judge_outside_the_job_is_asked_at_its_address_without_the_jobs_token() -> None:
    async with Server(said("Score: 1")) as server:
        manager = RewardManager([RewardSpec.model_validate({"vllm": {"url": f"{server.url}/", "judge": JUDGE}})])
        await manager.start()
        try:
            assert (await manager.score(CASE)).score == 1.0
        finally:
            await manager.stop()
        assert server.tokens == {""}
