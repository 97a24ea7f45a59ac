"""An agent's turns on a real server, across updates of the weights: every token is of the policy that it names, behind all tokens before it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.python_file import WorkerAgent
from rljob_trainer.buffer.generation import Draft, Generator
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rollout.pool import RolloutPool
from rljob_trainer.trajectory import Trajectory
from rljob_trainer.weights.publisher import Publisher
from rljob_trainer.weights.transport import over_gloo
from trainer.rollout import models
from trainer.rollout.servers import TOKEN, Server, spec

pytestmark = pytest.mark.slow

TURNS, LONGEST, ROOM, SAMPLES = 3, 8, 96, 2
CODE = """
import asyncio
from pathlib import Path
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    context = list(prompt.tokens)
    while turn := await policy.generate(context):
        gate = Path(__file__).with_name("gate")
        gate.with_name(f"waiting-{id(policy)}").touch()
        while not gate.exists():
            await asyncio.sleep(0.05)
        context = turn.whole + [7, 8, 9]
    return Trajectory(context)
"""
"""Its first turn is of the first policy; the others come when the gate is opened."""


def job(model: Path, code: Path) -> RLJobSpec:
    agent = {"python": {"path": str(code)}, "maxTurns": TURNS, "maxTokens": ROOM}
    found = spec(model, sampling={"maxTokens": LONGEST, "temperature": 1.0}, agent=agent).dump()
    train = {"steps": 2, "promptsPerStep": 1, "overSampling": 2, "samplesPerPrompt": SAMPLES, "partialRollouts": {}}
    return RLJobSpec.model_validate(found | {"train": train, "rewards": []})


def difference(sample: Trajectory, policies: list[Path]) -> float:
    """Largest between a token's log-probability and Hugging Face's, under the policy that is said to have written it."""
    found, begin, tokens = [], 0, tuple(sample.tokens.tolist())
    for part in sample.segments:
        end = begin + len(part.tokens)
        if part.log_probs is not None:
            expected = models.log_probs(policies[part.policy_step], tokens[:begin], tokens[begin:end], 1.0)
            found.append((expected - torch.tensor(part.log_probs)).abs().max().item())
        begin = end
    return max(found)


def wait_for_agents(directory: Path, count: int) -> None:
    """Every one has its first turn."""
    deadline = time.monotonic() + 60
    while len([*directory.glob("waiting-*")]) < count:
        assert time.monotonic() < deadline, "the agents got no turn"
        time.sleep(0.05)


async def test_turns_before_and_after_an_update_are_of_their_own_policies(
    start: Callable[..., Server], checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    (code := tmp_path / "agent.py").write_text(CODE)
    policies = [checkpoints["old"], checkpoints["new"]]
    server, made = start(policies[0]), job(policies[0], code)
    assert made.rollout.agent
    agent, pool = WorkerAgent(made.rollout.agent), RolloutPool(TOKEN, 1, 1, 8, lambda: None)
    await agent.start()
    generator = Generator(made, "u", load_tokenizer(made), RewardManager([]), pool, lambda: None, agent)
    publisher = Publisher(1, TOKEN, over_gloo("127.0.0.1"))

    async def publish(step: int) -> None:
        await pool.trained()
        arguments = (step, iter(models.tensors(policies[step])), [server.endpoint], lambda: None)
        assert (await asyncio.to_thread(publisher.publish, *arguments)).ok
        await pool.follow([server.endpoint])
        await pool.published(step, [server.endpoint], {})
        generator.resume()

    await publish(0)
    prompt = Prompt(0, tuple(2 + (7 * j) % 120 for j in range(40)), "", "", "")
    group = asyncio.create_task(generator.group(1, 0, prompt, [Draft(), Draft()]))
    await asyncio.to_thread(wait_for_agents, tmp_path, SAMPLES)
    await generator.interrupt()
    await publish(1)
    (tmp_path / "gate").touch()
    samples = [o.result for o in await asyncio.wait_for(group, 60)]
    await agent.stop()
    await pool.close()
    for sample in samples:
        assert isinstance(sample, Trajectory)
        given = [s.tokens.tolist() for s in sample.segments if s.source == "environment"]
        assert given == [[7, 8, 9]] * (TURNS - 1) and sample.segments[-1].source == "policy"
        assert {s.policy_step for s in sample.sampled_segments} == {0, 1}
        assert difference(sample, policies) < 1e-4
        assert difference(sample, policies[::-1]) > 0.1, "the two models must differ for this test to say anything"
