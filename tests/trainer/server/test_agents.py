"""An agent's turns on a real server, across updates of the weights: every token is of the policy that it names, behind all tokens before it."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rljob_api.families import ParserNames
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.agents.python_file import WorkerAgent
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.wire.rollout_client import GenerationRequest, RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ParserUnusableError
from rljob_trainer.wire.trajectory import Trajectory
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server, spec
from trainer.server.test_families import tensors

pytestmark = pytest.mark.slow

SECONDS = 600
"""Many times what anything takes."""
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
CONTINUES = (
    CODE.replace("import asyncio\n", "import asyncio, os\n")
    .replace("row)", "row, history)")
    .replace("list(prompt.tokens)", "history.last.whole + [7, 8, 9] if history.last else prompt.tokens")
    .replace("        context = turn", "        if not history.turns:\n            os._exit(3)\n        context = turn")
)
"""The same, whose process ends when the gate is opened."""


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
    deadline = time.monotonic() + SECONDS
    while len([*directory.glob("waiting-*")]) < count:
        assert time.monotonic() < deadline, "the agents got no turn"
        time.sleep(0.05)


class Lab:
    """A server, the pool in front of it, and two policies to publish."""

    def __init__(self, server: Server, policies: list[Path]):
        self.pool = RolloutPool(TOKEN, 1, 1, 64, lambda: None)
        self._server, self._policies, self._publisher = server, policies, Publisher(1, TOKEN, over_tcp("127.0.0.1"))

    async def publish(self, step: int) -> None:
        await self.pool.trained()
        arguments = (step, iter(tensors(self._policies[step])), [self._server.endpoint], lambda: None)
        assert (await asyncio.to_thread(self._publisher.publish, *arguments)).ok
        await self.pool.follow([self._server.endpoint])
        await self.pool.published(step, [self._server.endpoint], {})


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    return start(checkpoints["old"])


@pytest.mark.parametrize(("text", "resumed"), [(CODE, 0.0), (CONTINUES, 1.0)])
async def test_turns_before_and_after_an_update_are_of_their_own_policies(
    server: Server, checkpoints: dict[str, Path], tmp_path: Path, text: str, resumed: float
) -> None:
    """Also where the process of the agent is lost between the two."""
    (code := tmp_path / "agent.py").write_text(text)
    policies = [checkpoints["old"], checkpoints["new"]]
    lab, made = Lab(server, policies), job(policies[0], code)
    assert made.rollout.agent
    agent = WorkerAgent(made.rollout.agent)
    await agent.start()
    generator = Generator(made, load_tokenizer(made), RewardManager([]), lab.pool, lambda: None, agent)
    await lab.publish(0)
    generator.resume()
    prompt = Prompt(0, tuple(2 + (7 * j) % 120 for j in range(40)), "", "", "")
    group = asyncio.create_task(generator.group(1, 0, prompt, [PartialSample(), PartialSample()]))
    await asyncio.to_thread(wait_for_agents, tmp_path, SAMPLES)
    await generator.interrupt()
    await lab.publish(1)
    generator.resume()
    (tmp_path / "gate").touch()
    outcomes = await asyncio.wait_for(group, SECONDS)
    samples = [o.result for o in outcomes]
    assert [o.agent["agent/resumed"] for o in outcomes] == [resumed] * SAMPLES
    await agent.stop()
    await lab.pool.close()
    for sample in samples:
        assert isinstance(sample, Trajectory)
        given = [s.tokens.tolist() for s in sample.segments if s.source == "environment"]
        assert given == [[7, 8, 9]] * (TURNS - 1) and sample.segments[-1].source == "policy"
        assert {s.policy_step for s in sample.sampled_segments} == {0, 1}
        assert difference(sample, policies) < 1e-4
        assert difference(sample, policies[::-1]) > 0.1, "the two models must differ for this test to say anything"


async def test_contexts_that_do_not_fit_into_one_step_of_the_engine_keep_their_seeds(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    """Turns of many trajectories come at once, each with a context and a seed of its own."""
    lab = Lab(server, [checkpoints["old"]])
    await lab.publish(0)
    contexts = [[2 + i, *(2 + (7 * j) % 120 for j in range(180))] for i in range(48)]
    sampling = Sampling(max_tokens=4)
    asked = [lab.pool.generate(GenerationRequest(context, 1, sampling, seed)) for seed, context in enumerate(contexts)]
    found = await asyncio.wait_for(asyncio.gather(*asked), SECONDS)
    again = await lab.pool.generate(GenerationRequest(contexts[7], 1, sampling, 7))
    await lab.pool.close()
    assert all(len(generation.tokens) for (generation,) in found)
    assert found[7][0].tokens.tolist() == again[0].tokens.tolist()
    assert lab.pool.redispatched == 0, "the engine survived"


def cached(server: Server) -> tuple[float, float]:
    """Tokens of prompts that the server was asked for, and those of them that it did not compute again."""
    text = server.get("/metrics")[1]
    return tuple(
        float(re.search(rf"^vllm:prefix_cache_{name}_total{{.*}} (.*)$", text, re.MULTILINE)[1])
        for name in ("queries", "hits")
    )


def counted(server: Server, before: tuple[float, float], tokens: int) -> tuple[float, float]:
    """What was added, once the server has counted so many tokens."""
    deadline = time.monotonic() + SECONDS
    while (found := cached(server))[0] - before[0] < tokens:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found[0] - before[0], found[1] - before[1]


async def test_a_server_reads_responses_with_its_own_tokenizer_and_says_which_parser_it_cannot_use(
    server: Server, checkpoints: dict[str, Path]
) -> None:
    """The transcripts are in test_parsing.py. It waits for a server, and needs no policy of one."""
    lab, known = Lab(server, [checkpoints["old"]]), load_tokenizer(job(checkpoints["old"], Path("/agent.py")))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    asked = ParseRequest([3], [7, 8, 9], ended=False, parsers=ParserNames("hermes", ""), tools=[tool])
    waiting = asyncio.create_task(lab.pool.parse(asked))
    await lab.publish(0)
    found = await asyncio.wait_for(waiting, SECONDS)
    assert found == Parsed(known.decode([7, 8, 9], skip_special_tokens=False), "", [])
    with pytest.raises(ParserUnusableError, match="python_tag"):
        await lab.pool.parse(replace(asked, parsers=ParserNames("llama3_json", "")))
    with pytest.raises(RequestRefusedError, match="tools"):
        await lab.pool.parse(replace(asked, tools=[{"type": "function"}]))
    await lab.pool.close()


async def test_a_turn_computes_little_more_than_what_is_new_in_it(server: Server, checkpoints: dict[str, Path]) -> None:
    """Three turns, each with the context of the one before: of the tokens read, these are saved but for what fills no block of the cache."""
    lab = Lab(server, [checkpoints["old"]])
    await lab.publish(0)
    before, asked = cached(server), []
    context = [3 + (5 * j) % 120 for j in range(180)]
    for turn in range(TURNS):
        asked.append(len(context))
        (found,) = await lab.pool.generate(GenerationRequest(context, 1, Sampling(max_tokens=4), turn))
        context += [*found.tokens.tolist(), 7, 8, 9]
    await lab.pool.close()
    queries, hits = await asyncio.to_thread(counted, server, before, sum(asked))
    print(f"of {queries:.0f} tokens in {TURNS} turns {hits:.0f} were cached")
    assert queries == sum(asked) and hits > 0.4 * queries
