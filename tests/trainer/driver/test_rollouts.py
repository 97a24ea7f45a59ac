"""Membership joined to the pool, before servers of the test's own process."""

import asyncio

from rljob_trainer.driver.rollouts import Rollouts
from trainer.driver.servers import Server


async def seen(rollouts: Rollouts, changed: asyncio.Event, *servers: Server) -> None:
    """All of them answer. Nobody looks for the lost after that."""
    await rollouts.follow([s.endpoint for s in servers])
    looking = asyncio.create_task(rollouts.run())
    async with asyncio.timeout(5):
        while len(rollouts.to_publish()) < len(servers):
            changed.clear()
            await changed.wait()
    looking.cancel()


async def test_a_replica_that_the_pool_has_lost_does_not_come_back_with_a_newcomers_weights() -> None:
    async with Server("demo-rollout-0") as lost, Server("demo-rollout-1") as newcomer:
        changed = asyncio.Event()
        rollouts = Rollouts("token", 1, 1, 8, changed.set)
        await seen(rollouts, changed, lost, newcomer)
        await rollouts.published(0, [lost.endpoint], {})
        await rollouts.pool.dismiss(lost.endpoint.pod_uid, "it does not answer")
        await rollouts.published(0, [newcomer.endpoint], {})
        assert rollouts.pool.replicas == [newcomer.endpoint] and rollouts.count == 1
        await rollouts.pool.close()
