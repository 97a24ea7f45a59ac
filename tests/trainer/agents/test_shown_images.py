"""Images of an agent's trajectory: those of its row, and those that it shows the policy in messages, such as what a tool has drawn."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from rljob_api.families import ParserNames
from rljob_api.spec.agent import AgentSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import Policy, PolicyError
from rljob_trainer.agents.conversations import ResponseParser
from rljob_trainer.agents.endpoint import Endpoint
from rljob_trainer.agents.session import Response, Session
from rljob_trainer.agents.shown_images import ShownImages
from rljob_trainer.data.pictures import ImageReader
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import tokenizer_of
from rljob_trainer.wire.trajectory import Ints, Segment
from trainer.agents.endpoint import client_of, parse, posted
from trainer.agents.talker import first_step, with_agent
from trainer.data.vision import PAD, png_url, processor_directory
from trainer.driver.bench import Bench
from trainer.driver.servers import Seeing

RED, BLUE = "#a01010", "#1010a0"


def url(colour: str, side: int = 16) -> str:
    """Of an image of one colour, which takes (side / 8) ** 2 tokens."""
    return png_url(side, side, colour)


def shows(colour: str, side: int = 16, role: str = "user") -> dict:
    """A message."""
    return {
        "role": role,
        "content": [{"type": "text", "text": "w5 "}, {"type": "image_url", "image_url": {"url": url(colour, side)}}],
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processor_directory(tmp_path_factory.mktemp("vision") / "model")


@asynccontextmanager
async def served(model: Path) -> AsyncIterator[tuple[Session, ShownImages, list[Ints], Policy]]:
    """A trajectory whose policy says w7 in every turn, and the contexts that it was given."""
    seen: list[Ints] = []
    shown = ShownImages(ImageReader(str(model), "images"))

    async def sample(context: Ints, sampling: Sampling, turn: int) -> Response:
        shown.asked(context)
        seen.append(context)
        return (Segment(np.array([7, 1], np.int32), "policy", np.zeros(2, np.float32), 0),), False

    spec = AgentSpec.model_validate({"python": {"path": "/agent.py"}, "maxTurns": 8, "maxTokens": 400})
    parser = ResponseParser(ParserNames("", ""), {}, parse)
    prompt, sampling = Prompt(0, (1,), "w5", "w7", "sum"), Sampling(max_tokens=8)
    session = Session(
        spec,
        prompt,
        sampling,
        tokenizer_of("spec.model.path", str(model), False),
        ChatTemplate(),
        sample,
        parser,
        shown,
    )
    endpoint = Endpoint()
    await endpoint.start()
    try:
        yield session, shown, seen, Policy(session.answer, endpoint.open(session))
    finally:
        await endpoint.stop()


async def test_a_client_shows_images_and_the_ids_of_what_it_repeats_stay(model: Path) -> None:
    async with served(model) as (session, shown, seen, policy), client_of(policy) as client:
        messages = [shows(RED)]
        for more in (shows(BLUE, role="tool"), {"role": "user", "content": "w6"}):
            answer = await client.chat.completions.create(model="any", messages=messages)
            messages += [answer.choices[0].message, more]
        rollout = session.rollout([(await policy.trajectory()).tokens])
    assert rollout is not None
    first, second = seen
    assert first.tolist().count(PAD) == 4 and second.tolist().count(PAD) == 8
    assert second[: len(first) + 2].tolist() == [*first.tolist(), 7, 1]
    segments = shown.with_images(rollout.segments)
    assert [(s.source, len(s.images)) for s in segments] == [
        ("prompt", 1),
        ("policy", 0),
        ("environment", 1),
        ("policy", 0),
    ]
    for segment, colour in ((segments[0], RED), (segments[2], BLUE)):
        ((start, image),) = segment.images
        assert segment.tokens[start : start + image.tokens].tolist() == [PAD] * 4
        assert image == ImageReader(str(model), "images").read(url(colour), None)


async def test_images_are_read_from_responses_and_behind_token_ids(model: Path) -> None:
    async with served(model) as (_, shown, seen, policy), client_of(policy) as client:
        part = {"type": "input_image", "image_url": url(RED)}
        await client.responses.create(model="any", input=[{"role": "user", "content": [part]}])
        turn = await policy.generate([3, 4])
        assert turn is not None
        whole = turn.whole + await policy.reply(turn.whole, [shows(BLUE, 32)])
        await policy.generate(whole)
    assert [len(shown.of(context)) for context in seen] == [1, 0, 1]
    assert seen[2].tolist().count(PAD) == 16


async def test_an_image_that_cannot_be_told_from_another_is_refused_once_that_was_asked_about(model: Path) -> None:
    async with served(model) as (session, _, _, policy):
        await session.context([shows(RED)], [])
        await policy.generate([shows(BLUE)])
        await policy.generate([shows(RED, 24)])
        await policy.generate([{"role": "user", "content": "w6"}, shows(RED)])
        with pytest.raises(PolicyError, match="two images of one size stand behind the same tokens"):
            await policy.generate([shows(RED)])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (shows(RED) | {"role": "assistant"}, "a message of the assistant has an image"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}]},
            "an image of a message is '/etc/hostname'",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]},
            "an image of a message is 'http://a/b'",
        ),
        ({"role": "user", "content": [{"type": "image_url"}]}, "an image of a message has the address None"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,AA"}}]},
            "an image of a message cannot be read",
        ),
        (
            {"role": "user", "content": [*shows(RED)["content"], {"type": "text", "text": " <|image_pad|>"}]},
            "the chat template writes 2 image tokens",
        ),
        ({"role": "user", "content": [{"type": "video_url"}]}, "a part of a message is of type video_url"),
    ],
)
async def test_what_is_no_image_that_can_be_read_is_refused_with_the_reason(
    model: Path, message: dict, says: str
) -> None:
    async with served(model) as (_, _, seen, policy):
        status, error = await posted(f"{policy.base_url}/chat/completions", {"messages": [message]})
    assert (status, seen) == (400, []) and error["message"].startswith(says)


AGENT = f"""
from rljob_trainer.agents import Trajectory

async def rollout(prompt, policy, row):
    first = await policy.generate(list(prompt.tokens))
    message = {{"role": "user", "content": [{{"type": "image", "image": {url(BLUE)!r}}}]}}
    second = await policy.generate(first.whole + await policy.reply(first.whole, [message]))
    other = await policy.generate([{{"role": "user", "content": "w6"}}])
    return Trajectory(second.whole, reward=1.0, branches=[other.whole])
"""


async def test_the_policy_sees_the_rows_image_in_every_turn_and_a_shown_one_from_then_on(
    tmp_path: Path, model: Path
) -> None:
    bench = Bench(tmp_path)
    row = {"prompt": [{"role": "user", "content": "w5 <image>"}], "answer": "w7", "images": url(RED)}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n")
    bench.spec["model"] = {"path": str(model)}
    bench.spec["data"] = {"train": [str(tmp_path / "train.jsonl")], "imageKey": "images", "maxPromptTokens": 32}
    bench.spec["rewards"] = []
    with_agent(bench.spec, tmp_path, AGENT, timeoutSeconds=60)
    found, server = await first_step(bench, Seeing("demo-rollout-0"))
    asked = sorted(len(body.get("images", ())) for body in server.requests)
    assert asked == [*[0] * (len(asked) // 3), *[1] * (len(asked) // 3), *[2] * (len(asked) // 3)]
    reader = ImageReader(str(model), "images")
    for sample in (found.samples[i] for i in range(len(found.columns))):
        colours = [RED, BLUE] if not sample.branch else []
        assert [image for _, image in sample.images] == [reader.read(url(colour), None) for colour in colours]
        for start, image in sample.images:
            assert sample.tokens[start : start + image.tokens].tolist() == [PAD] * 4
        assert not any(s.images for s in sample.sampled_segments)
