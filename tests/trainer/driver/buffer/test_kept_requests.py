"""Requests that continue under the next policy, as rank 0 and the rollout servers see it."""

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.order import permutation
from rljob_trainer.driver.buffer import saved
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.wire.parity import PROBE_SEQUENCES
from trainer.driver.bench import batch, begun, call, publish, save_buffer, trained, until
from trainer.driver.buffer.stale import ages, ahead, asked
from trainer.driver.servers import Thinker

ORDER = permutation(12, 0, 0)
SLOWEST = divmod(ORDER[0], 3)
ANSWER = f"{sum(SLOWEST) + 2}."


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = ahead(tmp_path, monkeypatch)
    bench.spec["train"] |= {"staleness": 2, "promptsPerStep": 2, "samplesPerPrompt": 2}
    bench.spec["rollout"]["interrupt"] = "keep"
    return bench


def slow(thoughts: int):
    """The first prompt takes so many tokens, the others few."""
    return lambda a, b: thoughts if (a - 1, b - 1) == SLOWEST else 5


async def test_no_request_ends_for_a_policy_and_each_token_has_the_one_that_wrote_it(bench):
    async with Thinker("demo-rollout-0", slow(400)) as a, begun(bench, [a]) as rank:
        found = []
        for step in (1, 2, 3, 4):
            found.append(await batch(rank))
            assert await trained(rank, step) == ["demo-rollout-0"]
            assert (SLOWEST in a.finished) == (step > 2), "nobody waits for what is being generated"
            await publish(rank, step, [a])
        assert await until(rank, "over") == "succeeded"
    assert (a.interrupted, len(a.requests)) == (0, 8), "one request for each prompt"
    late = [(f.step, s) for f in found for s in f.samples if s.prompt_index == ORDER[0]]
    assert [step for step, _ in late] == [3, 3]
    for _, sample in late:
        policies = [part.policy_step for part in sample.sampled_segments]
        assert policies in ([0, 1, 2], [0, 2]), "that of step 1 may last for less than a token"
        assert [set(part.log_probs.tolist()) for part in sample.sampled_segments] == [{-1.0 - p} for p in policies]
        assert "".join(map(chr, sample.response_tokens)) == f"{' ' * 400}{ANSWER}"
    assert all(max(ages(f)) <= 2 for f in found)
    assert sorted(s.prompt_index for f in found for s in f.samples) == sorted(2 * ORDER[:8])


async def test_a_server_that_fails_an_update_loses_its_requests_to_the_others(bench):
    async with (
        Thinker("demo-rollout-0", slow(200)) as a,
        Thinker("demo-rollout-1", slow(200)) as b,
        begun(bench, [a, b]) as rank,
    ):
        found = [await batch(rank)]
        await trained(rank, 1)
        has_it, other = (a, b) if any(_is_slow(r) for r in a.requests) else (b, a)
        asked_before = len(other.requests)
        bench.control(rollouts=(other.endpoint,))
        await publish(rank, 1, [other], {has_it.pod: "it hung"})
        await asked(other, asked_before + 1)
        assert any(_is_slow(r) for r in other.requests), "from its beginning: nobody else has its tokens"
        for step in (2, 3, 4):
            found.append(await batch(rank))
            await trained(rank, step)
            await publish(rank, step, [other])
        assert await until(rank, "over") == "succeeded"
    assert sorted(s.prompt_index for f in found for s in f.samples) == sorted(2 * ORDER[:8])
    for f in found:
        assert max(ages(f)) <= 2 and all("".join(map(chr, s.response_tokens)).endswith(".") for s in f.samples)


async def test_a_drain_takes_the_tokens_from_the_servers_into_the_checkpoint(bench, tmp_path):
    quick = {divmod(position, 3) for position in ORDER[1:3]}
    pace = lambda a, b: 5 if (a - 1, b - 1) in quick else 1000  # noqa: E731
    async with Thinker("demo-rollout-0", pace) as a, begun(bench, [a]) as rank:
        await batch(rank)
        await trained(rank, 1)
        await publish(rank, 1, [a])
        bench.control("drain", (a.endpoint,))
        assert await until(rank, "over") == "drained"
        await call(rank.saving)
        await save_buffer(rank, tmp_path / "buffer")
    groups = saved.read(tmp_path / "buffer", RLJobSpec.model_validate(bench.spec), 1).groups
    (begun_first,) = [g for g in groups if g.position == 0]
    for sample in begun_first.samples:
        assert isinstance(sample, PartialSample) and sample.finish_reason == "abort"
        assert [s.policy_step for s in sample.response] == [0, 1] and sample.length > 10


@pytest.mark.parametrize(("interrupt", "room"), [("continue", 0), ("keep", PROBE_SEQUENCES)])
async def test_servers_that_generate_have_room_for_a_probe(bench, interrupt, room):
    """Every update is probed, since tokens behind caches of older policies prove nothing."""
    bench.spec["rollout"] |= {"interrupt": interrupt, "vllmArgs": {"max-num-seqs": 8}, "replicas": 1}
    async with Thinker("demo-rollout-0", lambda a, b: 2000) as a, begun(bench, [a]):
        await asked(a, (8 - room) // 2)
        assert len(a.requests) == (8 - room) // 2


async def test_every_update_is_probed(bench):
    async with Thinker("demo-rollout-0", slow(5)) as a, begun(bench, [a]) as rank:
        assert len((await until(rank, "batch"))["probe"]) == 4


def _is_slow(request: dict) -> bool:
    return "".join(map(chr, request["prompt"])).startswith(f"{SLOWEST[0] + 1}+{SLOWEST[1] + 1}=")
