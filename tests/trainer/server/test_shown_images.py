"""Images that an agent shows a policy on a real server: what it writes behind them is, to the trainer, as likely as the server says."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.python_file import WorkerAgent
from rljob_trainer.data.pictures import ImageReader
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver.buffer.generation import Generator
from rljob_trainer.driver.buffer.partial_sample import PartialSample
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.wire.images import Placed
from rljob_trainer.wire.trajectory import Trajectory
from trainer.data.vision import png_url
from trainer.megatron import models
from trainer.megatron.test_families import GIVEN
from trainer.megatron.vision import FIRST, LAST, PAD, make_image
from trainer.ranks import run_ranks
from trainer.server.servers import Server, spec
from trainer.server.test_agents import Lab
from trainer.server.test_vision import make

SHOWN = (png_url(16, 16, "#a01010"), png_url(32, 16, "#1010a0"))
"""Behind the first turn, and behind the second: images of 4 and 8 tokens."""
AGENT = f"""
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    turn = await policy.generate(list(prompt.tokens))
    for image in {SHOWN!r}:
        content = [{{"type": "text", "text": "w9 "}}, {{"type": "image_url", "image_url": {{"url": image}}}}]
        shown = await policy.reply(turn.whole, [{{"role": "tool", "content": content}}])
        turn = await policy.generate(turn.whole + shown)
    return Trajectory(turn.whole, reward=1.0)
"""
SAMPLES, LONGEST = 4, 8


def job(model: Path, agent: Path) -> RLJobSpec:
    section = {"python": {"path": str(agent)}, "maxTurns": 3, "maxTokens": 96}
    found = spec(model, "images", sampling={"maxTokens": LONGEST}, agent=section).dump()
    train = {"steps": 1, "promptsPerStep": 1, "samplesPerPrompt": SAMPLES}
    return RLJobSpec.model_validate(found | {"train": train, "rewards": []})


def prompt() -> Prompt:
    """With an image of its row."""
    image = make_image((2, 6), 1)
    tokens = (7, 8, FIRST, *[PAD] * image.tokens, LAST, 9)
    return Prompt(0, tokens, "", "", "", images=lambda: ((3, image),))


async def samples_of(server: Server, model: Path, code: Path) -> list[Trajectory]:
    """What the agent plays with this server."""
    made, lab = job(model, code), Lab(server, [model])
    assert made.rollout.agent
    agent = WorkerAgent(made.rollout.agent)
    await agent.start()
    try:
        generator = Generator(made, load_tokenizer(made), RewardManager([]), lab.pool, lambda: None, agent)
        await lab.publish(0)
        outcomes = await generator.group(1, 0, prompt(), [PartialSample() for _ in range(SAMPLES)])
    finally:
        await agent.stop()
        await lab.pool.close()
    return [outcome.result for outcome in outcomes if isinstance(outcome.result, Trajectory)]


def apart(model: Path, samples: Sequence[Trajectory]) -> float:
    """Largest difference between the server's log-probability of a token that it wrote, and that of Megatron."""
    made = models.job(model, tokensPerMicroBatch=4096, batches=GIVEN)
    return max(run_ranks(1, partial(_apart, made, samples)))


def _apart(made: RLJobSpec, samples: Sequence[Trajectory]) -> float:
    from rljob_trainer.megatron import compat

    compat.install()
    from rljob_trainer.megatron.engine import Engine

    found = Engine(made, lambda: None).log_probs(samples)
    pairs = zip(found, samples, strict=True)
    return max(float(np.abs(f.numpy() - s.response_log_probs)[s.response_mask].max()) for f, s in pairs)


def with_others(sample: Trajectory, count: int) -> Trajectory:
    """Whose last images, so many, are others of the same sizes."""
    *kept, last = sample.segments
    for at in range(len(kept) - 1, -1, -1):
        if kept[at].images and count:
            kept[at], count = replace(kept[at], images=_others(kept[at].images)), count - 1
    return replace(sample, segments=(*kept, last))


def _others(images: Sequence[Placed]) -> tuple[Placed, ...]:
    return tuple((at, make_image(image.grid, 99)) for at, image in images)


@pytest.mark.slow
@pytest.mark.parametrize("kind", extra_but(("qwen3_vl",), ("qwen2_5_vl", "qwen3_vl")))
def test_the_trainer_reads_the_images_that_an_agent_has_shown_as_the_server_did(
    start: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    model, code = make(tmp_path / "model", kind, 1), tmp_path / "agent.py"
    code.write_text(AGENT)
    server = start(model, image_key="images")
    samples = asyncio.run(samples_of(server, model, code))
    server.kill()
    assert len(samples) == SAMPLES
    reader = ImageReader(str(model), "images")
    for sample in samples:
        assert [image for _, image in sample.images][1:] == [reader.read(url, None) for url in SHOWN]
        assert len(sample.sampled_segments) == 3
    assert apart(model, samples) < 1e-4
    for count in (1, 2, 3):
        assert apart(model, [with_others(s, count) for s in samples]) > 0.01, (
            "images must matter for this test to say anything"
        )
