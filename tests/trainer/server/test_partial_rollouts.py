"""Responses that real servers draw in pieces, across an update of the weights: no token is lost, each is of the policy that it names."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from rljob_api.spec.train import PartialRollouts, TrainSpec
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.buffer.groups import Groups
from rljob_trainer.driver.buffer.selection import Selection
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.wire.trajectory import Trajectory
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server, spec

pytestmark = pytest.mark.slow

FEWEST, STEPS, WANTED, SAMPLES, ROOM = 3, 12, 4, 2, 12
"""Of steps: whether responses are still being drawn when enough have ended is the machine's, so a few more are made until some were."""
LONGEST, TEMPERATURE = 100, 2.0
"""Hot: lengths are as different as can be."""
TRAIN = TrainSpec(
    steps=STEPS, prompts_per_step=WANTED, samples_per_prompt=SAMPLES, over_sampling=2, partial_rollouts=PartialRollouts(max_age=2)
)  # fmt: skip


def prompt(position: int) -> Prompt:
    """Longer than a block of vLLM's cache on CPU, so that one that outlives its weights would show."""
    return Prompt(position, tuple(2 + (position * 7 + j * 3) % 120 for j in range(140)), "", "", "")


class Lab:
    """A server, and everything between it and a batch. The policy of an even step is the first of the two models."""

    def __init__(self, server: Server, checkpoints: dict[str, Path]):
        self.policies = [checkpoints["old"], checkpoints["new"]]
        self._endpoint, self._publisher = server.endpoint, Publisher(1, TOKEN, over_tcp("127.0.0.1"))
        sampling = {"maxTokens": LONGEST, "temperature": TEMPERATURE}
        self._job = job = spec(self.policies[0], sampling=sampling).model_copy(update={"train": TRAIN})
        self.pool, self.rewards = RolloutPool(TOKEN, 1, 1, ROOM, lambda: None), RewardManager(job.rewards)
        self._groups = Groups(job, Generator(job, load_tokenizer(job), self.rewards, self.pool, lambda: None))
        self.pending: list[int] = []
        self._drawn = 0

    async def step(self, step: int) -> list[Trajectory]:
        """Publish the policy before it, and draw its groups."""
        await self.pool.trained()
        tensors = iter(models.tensors(self.policies[(step - 1) % 2]))
        arguments = (step - 1, tensors, [self._endpoint], lambda: None)
        assert (await asyncio.to_thread(self._publisher.publish, *arguments)).ok
        await self.pool.follow([self._endpoint])
        await self.pool.published(0, [self._endpoint], {})
        new = TRAIN.prompts_begun - len(self.pending)
        positions = [*self.pending, *range(self._drawn, self._drawn + new)]
        self._drawn += new
        found = await self._chosen(step, {p: prompt(p) for p in positions})
        self.pending = [p for p in positions if p not in found]
        samples = [o.result for group in found.values() for o in group if isinstance(o.result, Trajectory)]
        assert [(s.group, s.sample) for s in samples] == [(p, i) for p in found for i in range(SAMPLES)]
        return samples

    async def _chosen(self, step: int, prompts: dict[int, Prompt]) -> dict[int, Sequence[Outcome]]:
        """The groups that make the step; the others are interrupted."""
        selection, groups = Selection(self._job), self._groups
        groups.resume()
        groups.begin(step, step - 1, prompts)
        selection.begin_round(len(groups.positions))
        while not selection.choose(groups.complete, groups.waits(step)):
            await groups.changed()
        groups.remove(selection.chosen)
        await groups.leave(step)
        return selection.chosen


def difference(sample: Trajectory, policies: Sequence[Path]) -> float:
    """Largest between a token's log-probability and Hugging Face's, under the policy that is said to have drawn it and behind all tokens before."""
    found = []
    tokens, begin = tuple(sample.tokens.tolist()), sample.prompt_length
    for part in sample.sampled_segments:
        end = begin + len(part.tokens)
        expected = models.log_probs(policies[part.policy_step % 2], tokens[:begin], tokens[begin:end], TEMPERATURE)
        found.append((expected - torch.tensor(part.log_probs)).abs().max().item())
        begin = end
    assert begin == len(tokens)
    return max(found)


def continued(samples: Sequence[Trajectory]) -> list[Trajectory]:
    return [s for s in samples if len(s.sampled_segments) > 1]


async def test_every_token_is_of_the_policy_that_it_names_and_none_is_lost(
    start: Callable[..., Server], checkpoints: dict[str, Path]
) -> None:
    lab = Lab(start(checkpoints["old"]), checkpoints)
    await lab.rewards.start()
    samples: list[Trajectory] = []
    step = 0
    while step < FEWEST or (step < STEPS and not continued(samples)):
        step += 1
        drawn = await asyncio.wait_for(lab.step(step), 600)
        assert len(drawn) == WANTED * SAMPLES
        assert all(
            step - 1 - TRAIN.partial_rollouts.max_age
            <= s.sampled_segments[0].policy_step
            <= s.sampled_segments[-1].policy_step
            < step
            for s in drawn
        )
        samples += drawn
    assert sorted([*(s.group for s in samples[::SAMPLES]), *lab.pending]) == list(range((step + 1) * WANTED))
    assert lab.pool.redispatched == 0
    several = continued(samples)
    policies = [[(part.policy_step, len(part.tokens)) for part in s.sampled_segments] for s in several]
    print(f"\n{len(several)} of {len(samples)} samples are of several policies: {policies}")
    assert several
    assert max(difference(s, lab.policies) for s in samples) < 1e-4
    assert all(s.response_length == LONGEST for s in samples if s.finish_reason == "length")
    swapped = [lab.policies[1], lab.policies[0]]
    assert min(difference(s, swapped) for s in several) > 0.1, (
        "the two models must differ for this test to say anything"
    )
    await lab.pool.close()
