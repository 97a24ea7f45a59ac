"""More prompts begun than a step needs: which make the step, what becomes of the others, without and with a driver around it."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rljob_trainer.data.order import permutation
from rljob_trainer.driver import main
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Segment, appended, sampled
from trainer.ages import token_ages
from trainer.driver.bench import Bench, Characters, Rank, batch, begun, call, publish, trained, until
from trainer.driver.servers import Thinker

ORDER = [divmod(row, 3) for row in permutation(12, 0, 0)]
"""The first epoch's prompts "a+b=" as (a - 1, b - 1)."""


def test_a_response_knows_which_policy_drew_which_token() -> None:
    pieces = [((), 1), ((5, 6), 1), ((7,), 1), ((), 2), ((8,), 3)]
    response: tuple[Segment, ...] = ()
    for tokens, policy in [*pieces, ((9,), 3)]:
        response = appended(response, sampled(tokens, [-float(t) for t in tokens], policy))
    assert response == (sampled((5, 6, 7), (-5.0, -6.0, -7.0), 1), sampled((8, 9), (-8.0, -9.0), 3))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    bench = Bench(tmp_path)
    bench.spec["train"] |= {"steps": 9, "promptsPerStep": 2, "samplesPerPrompt": 2, "overSampling": 2}
    return bench


def partial(bench: Bench, age: int) -> None:
    bench.spec["algorithm"] = {"rolloutCorrection": {"importanceSampling": "token"}}
    bench.spec["train"]["partialRollouts"] = {"maxAge": age}


def slow(*positions: int, thoughts: int = 60) -> Thinker:
    """A server that thinks long about the prompts at these positions of the first epoch."""
    return Thinker("demo-rollout-0", lambda a, b: thoughts * ((a - 1, b - 1) in [ORDER[p] for p in positions]))


@asynccontextmanager
async def attempt(bench: Bench, server: Thinker, step: int = 0, data: dict | None = None) -> AsyncIterator[Rank]:
    async with server, begun(bench, [server], step, data) as rank:
        yield rank


async def train(rank: Rank, server: Thinker, step: int) -> dict:
    """Rank 0 trains the batch that it has; the state of the data afterwards."""
    await trained(rank, step)
    await publish(rank, step, [server])
    return await call(rank.saving)


def positions(found: Batch) -> list[int]:
    """Of the batch's prompts in the first epoch; its samples are whole and right, every token with its policy and log-probability."""
    prompts = [s.prompt_index for s in found.samples[::2]]
    assert [(s.prompt_index, s.group, s.sample) for s in found.samples] == [
        (p, g, i) for g, p in enumerate(prompts) for i in (0, 1)
    ]
    for s in found.samples:
        assert s.reward == 1.0 and s.finish_reason == "stop"
        assert (s.log_probs[s.loss_mask] == -1.0 - s.policy_steps[s.loss_mask]).all()
        policies = [part.policy_step for part in s.sampled_segments]
        assert policies == sorted(set(policies))
    return [permutation(12, 0, 0).index(p) for p in prompts]


async def test_the_first_complete_groups_make_the_step_and_the_others_are_dropped(bench):
    async with attempt(bench, server := slow(0, 2)) as rank:
        assert positions(await batch(rank)) == [1, 3]
        state = await train(rank, server, 1)
        assert (state["consumed"], state["pending"]) == (4, [])
        assert positions(await batch(rank)) == [4, 5]
        assert all(len(body["prompt"]) == 4 for body in server.requests), "none was continued"


async def test_what_is_not_complete_goes_on_behind_its_tokens_under_the_next_policy(bench):
    partial(bench, age=2)
    async with attempt(bench, server := slow(0, 3, thoughts=40)) as rank:
        assert positions(await batch(rank)) == [1, 2]
        state = await train(rank, server, 1)
        assert (state["consumed"], state["pending"]) == (4, [0, 3])
        found = await batch(rank)
        if 0 not in positions(found):
            await train(rank, server, 2)
            found = await batch(rank)
        assert 0 in positions(found) and found.metrics["sampling/continued"] >= 0.5
        assert [body["n"] for body in server.requests[:10]] == [2] * 4 + [1] * 4 + [2] * 2, "what was kept comes first"
        long = [s for s in found.samples if s.prompt_index == permutation(12, 0, 0)[0]]
        assert all(s.response_length == 42 and len(s.sampled_segments) > 1 for s in long)
        first, *rest = [body for body in server.requests if body["prompt"][:4] == long[0].prompt_tokens.tolist()]
        assert first["n"] == 2 and {body["n"] for body in rest} == {1}
        assert len({first["seed"], *(body["seed"] for body in rest)}) == 1 + len(rest), "no random number comes twice"
        assert {len(body["prompt"]) - 4 + body["max_tokens"] for body in [first, *rest]} == {1024}


async def test_a_step_waits_for_groups_that_would_be_too_old_for_the_next(bench):
    partial(bench, age=1)
    async with attempt(bench, server := slow(0, 1)) as rank:
        assert positions(await batch(rank)) == [2, 3]
        await train(rank, server, 1)
        found = await batch(rank)
        assert positions(found) == [0, 1], "although those of step 2 were complete before"
        mean, oldest = token_ages(2, found.samples)
        assert 0 < mean < 1 and oldest == 1


async def test_a_resumed_attempt_begins_what_was_kept_anew(bench):
    partial(bench, age=4)
    async with attempt(bench, server := slow(0, 3)) as rank:
        assert positions(await batch(rank)) == [1, 2]
        state = await train(rank, server, 1)
    async with attempt(bench, server := slow(), 1, state) as rank:
        found = await batch(rank)
        assert positions(found) == [0, 3] and token_ages(2, found.samples) == (0, 0)


async def test_nothing_is_kept_behind_the_last_step(bench):
    partial(bench, age=2)
    bench.spec["train"]["steps"] = 1
    async with attempt(bench, server := slow(0, 2, thoughts=400)) as rank:
        assert positions(await batch(rank)) == [1, 3]
        state = await train(rank, server, 1)
        assert (state["consumed"], state["pending"]) == (4, [0, 2])
        assert await until(rank, "over") == "succeeded"
        assert len(server.requests) == 4


@pytest.mark.parametrize("staleness", [0, 1])
async def test_through_failures_and_resumes_every_prompt_is_trained_once_per_epoch_and_no_token_is_too_old(
    bench, staleness
):
    """Attempts end at random, some right after a checkpoint and some a step later, which is then lost."""
    partial(bench, age=2)
    bench.spec["train"] |= {"steps": 12, "staleness": staleness}
    chance, used, step, state = random.Random(staleness), {}, 0, None
    while step < 12:
        server = Thinker("demo-rollout-0", lambda a, b: chance.choice([0, 0, 5, 30]))
        server.thoughts = remembered(server.thoughts)
        async with attempt(bench, server, step, state) as rank:
            for _ in range(min(12 - step, chance.randint(1, 4))):
                found = await batch(rank)
                used[found.step] = positions_of(found)
                assert token_ages(found.step, found.samples)[1] <= 2
                saved = await train(rank, server, found.step)
                if chance.random() < 0.7:
                    step, state = found.step, saved
    trained_on = [p for s in range(1, 13) for p in used[s]]
    assert state is not None
    epochs = Counter(trained_on) + Counter(permutation(12, 0, p // 12)[p % 12] for p in state["pending"])
    whole, more = divmod(state["consumed"], 12)
    expected = Counter(dict.fromkeys(range(12), whole)) + Counter(permutation(12, 0, whole)[:more])
    assert epochs == expected


def remembered(thoughts):
    """The same for the same question."""
    known: dict[tuple[int, int], int] = {}
    return lambda a, b: known.setdefault((a, b), thoughts(a, b))


def positions_of(found: Batch) -> list[int]:
    """Rows of its prompts."""
    return [s.prompt_index for s in found.samples[::2]]
