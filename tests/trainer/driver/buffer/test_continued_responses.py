"""Responses that continue under the next policy, while training runs."""

import pytest

from rljob_trainer.checkpoint.manifest import fingerprints
from rljob_trainer.data.order import permutation
from trainer.driver.bench import (
    batch,
    begun,
    call,
    publish,
    save_buffer,
    trained,
    until,
    whole_batch,
)
from trainer.driver.buffer.stale import ages, ahead, answered, asked, probed
from trainer.driver.servers import Thinker


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return ahead(tmp_path, monkeypatch)


async def test_with_continue_a_policy_is_published_at_once_and_responses_continue_behind_their_tokens(bench):
    """A slow prompt of the first step is trained as late as it may be, with tokens of all policies since."""
    bench.spec["train"] |= {"staleness": 2, "promptsPerStep": 2, "samplesPerPrompt": 2}
    bench.spec["rollout"]["interrupt"] = "continue"
    slowest = divmod(permutation(12, 0, 0)[0], 3)
    async with (
        Thinker("demo-rollout-0", lambda a, b: 400 if (a - 1, b - 1) == slowest else 5) as a,
        begun(bench, [a]) as rank,
    ):
        found = []
        for step in (1, 2, 3, 4):
            found.append(await batch(rank))
            await trained(rank, step)
            assert (slowest in a.finished) == (step > 2), "nobody waits for what is being generated"
            await publish(rank, step, [a])
        assert await until(rank, "over") == "succeeded"
    late = [(f.step, s) for f in found for s in f.samples if s.prompt_index == permutation(12, 0, 0)[0]]
    assert [step for step, _ in late] == [3, 3]
    for _, sample in late:
        assert [part.policy_step for part in sample.sampled_segments] == [0, 1, 2]
        assert [set(part.log_probs.tolist()) for part in sample.sampled_segments] == [{-1.0}, {-2.0}, {-3.0}]
        assert "".join(map(chr, sample.response_tokens)) == f"{' ' * 400}{sum(slowest) + 2}."
    assert sorted(s.prompt_index for f in found for s in f.samples) == sorted(2 * permutation(12, 0, 0)[:8])


async def test_with_continue_rollouts_come_and_go_without_a_wait_and_no_sample_is_lost(bench):
    """One of two leaves while it writes, another comes: what the first had at the last policy is continued elsewhere."""
    bench.spec["train"] |= {"steps": 6, "staleness": 2, "promptsPerStep": 2, "samplesPerPrompt": 2}
    bench.spec["rollout"]["interrupt"] = "continue"
    pace = lambda a, b: 20 + 40 * (b == 2)  # noqa: E731
    async with (
        Thinker("demo-rollout-0", pace) as a,
        Thinker("demo-rollout-1", pace) as b,
        Thinker("new", pace) as c,
        begun(bench, [a, b]) as rank,
    ):
        found = []
        for step in range(1, 7):
            found.append(await batch(rank))
            if step == 2:
                assert b.requests
                bench.control(rollouts=(a.endpoint, c.endpoint))
                await probed(c)
            assert set(await trained(rank, step)) == (
                {"demo-rollout-0", "demo-rollout-1"} if step == 1 else {"demo-rollout-0", "new"}
            )
            await publish(rank, step, [a, b, c])
        assert await until(rank, "over") == "succeeded"
    assert c.requests, "a newcomer has work"
    policies = [{part.policy_step for part in s.sampled_segments} for f in found for s in f.samples]
    assert any(len(steps) > 1 for steps in policies), "nobody waited for what was being generated"
    assert sorted(s.prompt_index for f in found for s in f.samples) == sorted(2 * permutation(12, 0, 0))
    for f in found:
        for sample in f.samples:
            said = "".join(map(chr, sample.response_tokens))
            assert said.strip().endswith(".") and max(ages(f)) <= 2


async def test_a_resumed_attempt_trains_what_was_complete_and_continues_what_was_not(bench, tmp_path):
    """Nothing that the first attempt generated before its last publication is generated again."""
    bench.spec["train"] |= {"steps": 4, "staleness": 2, "promptsPerStep": 2, "samplesPerPrompt": 2}
    bench.spec["rollout"]["interrupt"] = "continue"
    order, buffer = permutation(12, 0, 0), tmp_path / "buffer"
    slowest = divmod(order[0], 3)
    pace = lambda a, b: 200 if (a - 1, b - 1) == slowest else 2  # noqa: E731
    async with Thinker("demo-rollout-0", pace) as a, begun(bench, [a]) as rank:
        first = await batch(rank)
        await asked(a, 6)
        await answered(a, len(a.requests) - 1)
        await trained(rank, 1)
        await publish(rank, 1, [a])
        state = await call(rank.saving)
        written = await save_buffer(rank, buffer)
        assert {f"buffer/{name}": list(file) for name, file in fingerprints(buffer).items()} == written
    async with Thinker("demo-rollout-0", pace) as b:
        bench.control(rollouts=(b.endpoint,))
        rank = await bench.connect()
        await call(rank.start, 1, state, [], "", buffer)
        found = [await batch(rank)]
        assert not b.requests, "the second batch is in the checkpoint"
        await trained(rank, 2)
        await publish(rank, 2, [b])
        while found[-1].step != 4:
            answer = await call(rank.next)
            if "newcomers" in answer:
                await publish(rank, found[-1].step, [b])
            elif "batch" in answer:
                found.append(await call(whole_batch, rank, answer["batch"]))
                await trained(rank, found[-1].step)
                await publish(rank, found[-1].step, [b])
        bench.driver.cancel()
    (late,) = [f for f in found if order[0] in f.columns.prompt_index]
    assert late.step == 3
    for sample in (s for s in late.samples if s.prompt_index == order[0]):
        assert [part.policy_step for part in sample.sampled_segments] == [0, 2], "policy 1 never reached a server"
        assert len(sample.sampled_segments[0].tokens) > 10
        assert "".join(map(chr, sample.response_tokens)) == f"{' ' * 200}{sum(slowest) + 2}."
    assert sum(len(r["prompt"]) < 10 for r in b.requests) == 2, "the prompts of the last step are new"
    assert sorted(s.prompt_index for f in (first, *found) for s in f.samples) == sorted(2 * order[:8])
