"""One step ahead: the driver draws the next batch while rank 0 trains, as rank 0 and the rollout servers see it."""

import asyncio

import pytest
from aiohttp import web

from rljob_trainer.data.order import permutation
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rank.driver_client import DriverLost
from rljob_trainer.wire.batch import Batch
from trainer.driver.bench import (
    METRICS,
    SECONDS,
    Bench,
    Rank,
    batch,
    begun,
    call,
    publish,
    replicas,
    trained,
    until,
    whole_batch,
)
from trainer.driver.buffer.stale import ages, ahead, asked, probed
from trainer.driver.servers import Server


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return ahead(tmp_path, monkeypatch)


def in_order(found: Batch, seed: int) -> bool:
    """The prompts are those of the step, as if nothing had ever been interrupted."""
    places = [divmod(4 * (found.step - 1) + i, 12) for i in range(4)]
    expected = [permutation(12, seed, epoch)[place] for epoch, place in places]
    return [s.prompt_index for s in found.samples] == [index for index in expected for _ in range(3)]


class Evaluated(Server):
    """Responses to held-out prompts, which are greedy, wait while `evaluating` is clear."""

    def __init__(self, pod: str):
        super().__init__(pod)
        self.evaluating = asyncio.Event()
        self.evaluating.set()

    async def _generate(self, request: web.Request) -> web.Response:
        if (await request.json())["temperature"] == 0.0:
            await self.evaluating.wait()
        return await super()._generate(request)


async def test_the_next_batch_is_drawn_while_one_trains_and_nothing_beyond_the_last_step(bench):
    bench.spec["evaluation"] = {"everySteps": 2}
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        for step in (1, 2, 3, 4):
            found = await batch(rank)
            assert found.step == step and ages(found) == {0 if step == 1 else 1}
            await asked(a, 4 * min(step + 1, 4) + 3 * (1 + (step - 1) // 2))
            assert await trained(rank, step) == ["demo-rollout-0"]
            assert (await call(rank.saving))["consumed"] == 4 * step
            await publish(rank, step, [a])
        assert await until(rank, "over") == "succeeded"
        await call(rank.end, "")
        await asyncio.wait_for(bench.driver, SECONDS)
    assert len(a.requests) == 4 * 4 + 3 * 3
    assert [m["step"] for m in bench.metrics() if "evaluation/reward" in m] == [0, 2, 4]


async def test_publishing_waits_until_what_the_policy_before_draws_is_complete(bench):
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        await batch(rank)
        await asked(a, 8)
        await trained(rank, 1)
        a.answering.clear()
        await publish(rank, 1, [a])
        await batch(rank)
        await call(rank.trained, 2, METRICS)
        assert await call(rank.replicas) == {}, "the other ranks hear of it"
        a.answering.set()
        assert await replicas(rank) == ["demo-rollout-0"]
        await publish(rank, 2, [a])
        assert ages(await batch(rank)) == {1}


async def test_an_evaluation_is_of_the_policy_of_its_step_and_takes_place_while_batches_are_drawn_and_trained(bench):
    bench.spec["evaluation"] = {"everySteps": 1}
    async with Evaluated("demo-rollout-0") as a, begun(bench, [a]) as rank:
        await batch(rank)
        await trained(rank, 1)
        a.evaluating.clear()
        await publish(rank, 1, [a])
        assert (await batch(rank)).step == 2, "it trains"
        await asked(a, 4 * 3 + 3)
        await call(rank.trained, 2, METRICS)
        assert await call(rank.replicas) == {}, "the next policy waits"
        await bench.in_phase("evaluating")
        a.evaluating.set()
        assert await replicas(rank) == ["demo-rollout-0"]
        assert [m["step"] for m in bench.metrics() if "evaluation/reward" in m] == [0, 1]
        await publish(rank, 2, [a])
        await batch(rank)


async def third_batch_never_comes(bench: Bench, rank: Rank, a: Server) -> None:
    """Rank 0 trains step 2, and what is drawn beside it hangs."""
    await batch(rank)
    await asked(a, 8)
    await trained(rank, 1)
    a.delay = 60
    await publish(rank, 1, [a])
    await batch(rank)
    await asked(a, 12)


async def test_a_drain_waits_for_the_step_and_not_for_what_is_drawn_beside_it(bench):
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        await third_batch_never_comes(bench, rank, a)
        bench.control("drain", (a.endpoint,))
        await asyncio.sleep(0.3)  # for what might follow the drain too early
        assert await trained(rank, 2) == [], "nobody needs the policy, but its digest is wanted"
        await publish(rank, 2, [])
        assert await until(rank, "over") == "drained"
        assert (await call(rank.saving))["consumed"] == 8
        await call(rank.end, "")
        await asyncio.wait_for(bench.driver, SECONDS)


async def test_a_drain_does_not_wait_for_an_evaluation(bench):
    bench.spec["evaluation"] = {"everySteps": 1}
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        await batch(rank)
        await asked(a, 11)
        await trained(rank, 1)
        a.delay = 60
        await publish(rank, 1, [a])
        bench.control("drain", (a.endpoint,))
        async with asyncio.timeout(SECONDS):
            while (answer := await call(rank.next)) != {"over": "drained"}:
                if answer:  # the driver had not read of the drain
                    await call(whole_batch, rank, answer["batch"])
        assert (await call(rank.saving))["consumed"] == 4
        await call(rank.end, "")
        await asyncio.wait_for(bench.driver, SECONDS)


async def test_a_replica_that_dies_beside_training_costs_no_sample_and_a_newcomer_gets_the_next_policy(bench):
    async with (
        Server("demo-rollout-0", delay=0.2) as a,
        Server("demo-rollout-1", delay=1.0) as b,
        Server("new") as c,
        begun(bench, [a, b]) as rank,
    ):
        await batch(rank)
        b.dying = True
        bench.control(rollouts=(a.endpoint, b.endpoint, c.endpoint))
        await probed(c)
        assert set(await trained(rank, 1)) >= {"demo-rollout-0", "new"}
        await publish(rank, 1, [a, b, c], failed={"demo-rollout-1": "gone"})
        found = await batch(rank)
        assert len(found.samples) == 12 and ages(found) == {1} and found.metrics["rollout/redispatched"] > 0
        await asked(c, 1)


async def test_when_all_replicas_are_lost_beside_training_the_batch_is_begun_anew_under_the_next_policy(bench):
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        await batch(rank)
        await asked(a, 8)
        await trained(rank, 1)
        a.dying = True
        await publish(rank, 1, [a])
        await batch(rank)
        await asyncio.sleep(0.8)  # a request fails, and so do its tries
        needed = await trained(rank, 2)
        a.dying = False
        await publish(rank, 2, [a] if needed else [])
        if not needed:
            await until(rank, "newcomers")
            await publish(rank, 2, [a])
        found = [await batch(rank)]
        await trained(rank, 3)
        await publish(rank, 3, [a])
        found.append(await batch(rank))
    assert [(f.step, ages(f), in_order(f, 0)) for f in found] == [(3, {0}, True), (4, {1}, True)]


async def test_a_resumed_attempt_draws_prompts_again_whose_samples_were_not_trained(bench):
    async with Server("demo-rollout-0") as a:
        async with begun(bench, [a]) as rank:
            await batch(rank)
            await asked(a, 8)
            await trained(rank, 1)
            state = await call(rank.saving)
        async with begun(bench, [a], 1, state) as rank:
            found = [await batch(rank)]
            await trained(rank, 2)
            await publish(rank, 2, [a])
            found.append(await batch(rank))
    assert [(f.step, ages(f), in_order(f, 0)) for f in found] == [(2, {0}, True), (3, {1}, True)]


async def test_rounds_of_dynamic_sampling_count_once_their_batch_is_trained(bench):
    bench.spec["algorithm"]["dynamicSampling"] = {"maxRounds": 6}
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: left % 2 == 1 and sample == 0
        async with begun(bench, [a]) as rank:
            first = 4 * int((await batch(rank)).metrics["sampling/rounds"])
            await asked(a, first + 8)
            await trained(rank, 1)
            assert (await call(rank.saving))["consumed"] == first
            await publish(rank, 1, [a])
            second = 4 * int((await batch(rank)).metrics["sampling/rounds"])
            await trained(rank, 2)
            assert (await call(rank.saving))["consumed"] == first + second


async def test_a_batch_that_fails_beside_training_ends_the_attempt_after_the_step(bench):
    bench.spec["algorithm"]["dynamicSampling"] = {"maxRounds": 1}
    bench.spec["train"]["promptsPerStep"] = 1
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: sample == 0 and len(a.requests) <= 2
        async with begun(bench, [a]) as rank:
            await batch(rank)
            await asked(a, 2)
            await trained(rank, 1)
            await publish(rank, 1, [a])
            await asked(a, 3)
            await asyncio.sleep(0.2)  # it fails before the one that is there is asked for
            await batch(rank)
            await call(rank.trained, 2, METRICS)
            with pytest.raises(DriverLost):
                await replicas(rank)
            with pytest.raises(ConfigurationError, match="only 0 of the 1 prompts"):
                await bench.driver
