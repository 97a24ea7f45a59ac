"""Which servers get requests, before servers of the test's own process."""

import asyncio
import logging

import pytest

from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.replicas import REFUSALS, REJECTIONS, PolicyRejectedError
from trainer.driver.servers import Server


async def answering(pool: RolloutPool, changed: asyncio.Event, *servers: Server) -> None:
    """All of them answer. Nobody asks again after that."""
    await pool.follow([s.endpoint for s in servers])
    probing = asyncio.create_task(pool.run())
    async with asyncio.timeout(120):
        while len(pool.to_publish()) < len(servers):
            changed.clear()
            await changed.wait()
    probing.cancel()


async def test_a_lost_replica_does_not_come_back_with_a_newcomers_weights() -> None:
    async with Server("demo-rollout-0") as lost, Server("demo-rollout-1") as newcomer:
        changed = asyncio.Event()
        pool = RolloutPool("token", 1, 1, 8, changed.set)
        await answering(pool, changed, lost, newcomer)
        await pool.published(0, [lost.endpoint], {})
        await pool.published(0, [lost.endpoint], {lost.endpoint.pod: "it does not answer"})
        await pool.published(0, [newcomer.endpoint], {})
        assert pool.current == [newcomer.endpoint] and pool.count == 1
        await pool.close()


async def test_a_replica_that_is_not_listed_any_more_is_not_used() -> None:
    async with Server("demo-rollout-0") as gone:
        changed = asyncio.Event()
        pool = RolloutPool("token", 1, 1, 8, changed.set)
        await answering(pool, changed, gone)
        await pool.follow([])
        await pool.published(0, [gone.endpoint], {})
        assert pool.current == [] and not pool.is_enough


async def test_an_attempt_ends_when_no_server_takes_the_policy_and_all_answer() -> None:
    """Each would be sent the same again until the job stalls."""
    async with Server("demo-rollout-0") as one, Server("demo-rollout-1") as two:
        changed, both = asyncio.Event(), [one.endpoint, two.endpoint]
        pool = RolloutPool("token", 1, 1, 8, changed.set)
        await answering(pool, changed, one, two)
        reasons = {e.pod: "bias is float32, this model takes bfloat16" for e in both}
        await pool.published(0, both, reasons)
        await pool.published(0, [two.endpoint], {})
        for _ in range(REJECTIONS):
            await pool.published(0, [one.endpoint], reasons)
        for _ in range(REJECTIONS - 1):
            await pool.published(0, [two.endpoint], reasons)
        with pytest.raises(
            PolicyRejectedError, match="demo-rollout-1: it did not take the policy of step 0: bias is float32"
        ):
            await pool.published(0, [two.endpoint], reasons)
        await pool.close()


async def test_a_server_with_another_token_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """The Secret was made again while some pods had the old one: nothing moves until it is known why."""
    async with Server("demo-rollout-0") as server:
        server.token = "older"
        pool = RolloutPool("token", 1, 1, 8, lambda: None)
        await pool.follow([server.endpoint])
        probing = asyncio.create_task(pool.run())
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(120):
                while not any(r.unauthorized for r in pool.report()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        probing.cancel()
        assert [r.message for r in caplog.records] == [pool.problem(server.endpoint)]
        assert "refuses this job's token (401)" in pool.problem(server.endpoint)
        assert server.refused >= REFUSALS
