"""Responses that a real server draws across an update that keeps them: none is interrupted, and each token names the policy that drew it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_api.spec.common import Sampling
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server

pytestmark = pytest.mark.slow

PROMPTS = [tuple(2 + (i * 7 + j * 3) % 120 for j in range(150)) for i in range(2)]
"""Longer than a block of vLLM's cache on CPU, so that one that outlives its weights would show."""
SAMPLES, LONGEST, TEMPERATURE = 4, 140, 2.0
SECONDS, TRIES = 600, 12
RUNNING = "vllm:num_requests_running"


class Lab:
    """A server, its pool, and the policies: that of an even step is the first of the two models."""

    def __init__(self, server: Server, checkpoints: dict[str, Path]):
        self.policies, self.server = [checkpoints["old"], checkpoints["new"]], server
        self.pool = RolloutPool(TOKEN, 1, 1, 64, lambda: None)
        self._publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"), keeps=True)

    def policy(self, step: int) -> Path:
        return self.policies[step % 2]

    async def publish(self, step: int, meanwhile: Callable[[], None] = lambda: None) -> Published:
        """`meanwhile`: called when half of the update has been sent."""

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            found = models.tensors(self.policy(step))
            yield from found[: len(found) // 2]
            meanwhile()
            yield from found[len(found) // 2 :]

        await self.pool.trained(keeps=True)
        endpoints = [self.server.endpoint]
        published = await asyncio.to_thread(self._publisher.publish, step, tensors(), endpoints, lambda: None)
        await self.pool.follow(endpoints)
        await self.pool.published(step, endpoints, published.failed)
        return published

    async def generate(self, seed: int) -> list[Generation]:
        """Responses to all prompts, one after the other."""
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=LONGEST)
        asked = [self.pool.generate(GenerationRequest(p, SAMPLES, sampling, seed)) for p in PROMPTS]
        return [g for group in await asyncio.wait_for(asyncio.gather(*asked), SECONDS) for g in group]

    def running(self) -> float:
        lines = self.server.get("/metrics")[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(RUNNING))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def expected(lab: Lab, prompt: tuple[int, ...], response: Generation) -> torch.Tensor:
    """[tokens]: log-probabilities by Hugging Face's implementation. A policy computes keys and values of what is not in the cache yet, which is the
    last token of the one before, and goes on with those that are there."""
    found, cache, seen = [], None, 0
    tokens, begin = torch.tensor([[*prompt, *response.tokens.tolist()]]), len(prompt)
    for part in response.segments:
        end = begin + len(part.tokens)
        model = AutoModelForCausalLM.from_pretrained(lab.policy(part.policy_step), dtype=torch.float32).eval()
        with torch.no_grad():
            out = model(tokens[:, seen : end - 1], past_key_values=cache, use_cache=True)
        logits = out.logits[0, begin - 1 - seen :] / TEMPERATURE
        found.append(logits.log_softmax(-1).gather(1, tokens[0, begin:end, None])[:, 0])
        cache, seen, begin = out.past_key_values, end - 1, end
    return torch.cat(found)


async def test_requests_continue_with_their_caches_under_the_next_policy_and_name_it(
    start: Callable[..., Server], checkpoints: dict[str, Path]
) -> None:
    lab = Lab(start(checkpoints["old"]), checkpoints)
    assert (await lab.publish(0)).ok
    several: list[tuple[tuple[int, ...], Generation]] = []
    step, loop = 0, asyncio.get_running_loop()
    while len(several) < SAMPLES:
        step += 1
        assert step < TRIES, "responses were always complete before the update"
        asked: list[Future[list[Generation]]] = []

        def ask(seed: int = step, asked: list[Future[list[Generation]]] = asked) -> None:
            """The server receives, and draws meanwhile."""
            asked.append(asyncio.run_coroutine_threadsafe(lab.generate(seed), loop))
            until(lambda: lab.running() > 0 or asked[0].done())

        published = await lab.publish(step, ask)
        assert published.ok == [lab.server.endpoint.pod] and published.paused > 0
        after = await lab.generate(99)
        during = await asyncio.wrap_future(asked[0])
        print(f"\nstep {step}: paused {published.paused:.4f} s, tokens before the update: {[g.later for g in during]}")
        for number, response in enumerate([*during, *after]):
            prompt = PROMPTS[number // SAMPLES % len(PROMPTS)]
            assert response.finish_reason in ("stop", "length"), "nothing is aborted"
            assert response.finish_reason == "stop" or len(response.tokens) == LONGEST
            assert len(response.log_probs) == len(response.tokens) == sum(len(s.tokens) for s in response.segments)
            assert [s.policy_step for s in response.segments] in ([step - 1], [step - 1, step], [step])
            torch.testing.assert_close(
                torch.tensor(response.log_probs), expected(lab, prompt, response), rtol=0, atol=1e-4
            )
            if len(response.segments) > 1:
                several.append((prompt, response))
        assert {s.policy_step for g in after for s in g.segments} == {step}
    assert lab.pool.redispatched == 0
    await lab.pool.close()
    for prompt, response in several:
        sample = PartialSample()
        sample.add(response)
        assert [(s.policy_step, len(s.tokens)) for s in sample.response] == [
            (s.policy_step, len(s.tokens)) for s in response.segments
        ]
        new = response.segments[-1]
        behind = (*prompt, *response.tokens[: len(response.tokens) - len(new.tokens)].tolist())
        alone = models.log_probs(lab.policy(new.policy_step), behind, tuple(new.tokens.tolist()), TEMPERATURE)
        difference = (alone - torch.tensor(new.log_probs)).abs().max()
        assert difference > 1e-3, "keys and values of the policy before make a difference; nothing computes them again"
