"""A model with a vision tower on a real server: what it says of images is what transformers says, under the weights that were published last."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.spec.common import Sampling
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.data.vision import WORDS, save_processor
from trainer.megatron.kinds import make_config
from trainer.megatron.models import load_model, random_model, save_published
from trainer.megatron.vision import FIRST, LAST, PAD, image_log_probs, make_image
from trainer.server.servers import TOKEN, Server
from trainer.server.test_families import tensors

IMAGES = ([], [make_image((4, 4), 0)], [make_image((2, 6), 1), make_image((8, 4), 2)])
SAMPLES = 3
Prompt = tuple[list[int], list[Placed]]


def served_config(kind: str) -> Any:
    """vLLM's attention on CPU wants heads of 32 or more."""
    config = make_config(kind, WORDS, hidden_size=128, max_position_embeddings=512)
    config.vision_config.out_hidden_size = 128
    config.vision_config.hidden_size = 64
    config.text_config.rope_parameters = config.text_config.rope_parameters | {"mrope_section": [6, 5, 5]}
    return config


def make(path: Path, kind: str, seed: int) -> Path:
    model = random_model(served_config(kind), seed)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.15)
        for parameter in model.model.visual.parameters():
            parameter.mul_(2.0)  # so that images are seen
    save_published(model, path)
    return save_processor(path, kind)


def prompts(pictures: Sequence[Sequence[Image]] = IMAGES) -> list[Prompt]:
    """One for each of `pictures`, which stand in it."""
    found = []
    for images in pictures:
        tokens, placed = [7, 8], list[Placed]()
        for image in images:
            placed.append((len(tokens) + 1, image))
            tokens += [FIRST, *[PAD] * image.tokens, LAST, 9]
        found.append((tokens, placed))
    return found


def publish_and_generate(
    server: Server, model: Path, step: int, asked: Sequence[Prompt] = ()
) -> list[list[Generation]]:
    """`asked`: in place of prompts()."""
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    published = publisher.publish(step, iter(tensors(model)), [server.endpoint], lambda: None, None)
    assert not published.failed

    async def ask() -> list[list[Generation]]:
        async with RolloutClient(server.endpoint, TOKEN, 1) as client:
            sampling = Sampling(max_tokens=12)
            answers = (
                client.generate(GenerationRequest(t, SAMPLES, sampling, i, images))
                for i, (t, images) in enumerate(asked or prompts())
            )
            return await asyncio.gather(*answers)

    return asyncio.run(ask())


def difference(model: Path, answers: list[list[Generation]], shown: bool = True, asked: Sequence[Prompt] = ()) -> float:
    """`shown`: otherwise other images of the same sizes. `asked`: in place of prompts()."""
    policy, worst = load_model(model), 0.0
    for (tokens, images), group in zip(asked or prompts(), answers, strict=True):
        seen = images if shown else [(at, other(image)) for at, image in images]
        for found in (g for g in group if PAD not in g.tokens):
            theirs = image_log_probs(policy, tokens, seen, np.asarray(found.tokens))
            worst = max(worst, float(np.abs(theirs - found.log_probs).max()))
    return worst


def other(image: Image) -> Image:
    """Of the same size."""
    return make_image(image.grid, 99, image.pixels.shape[1], image.merge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        *(pytest.param(kind, 1, marks=pytest.mark.extra) for kind in ("qwen2_5_vl", "qwen3_vl")),
        ("qwen3_vl_moe", 1),
        pytest.param("qwen3_vl_moe", 2, marks=pytest.mark.extra),
    ],
)
def test_a_server_sees_the_images_of_the_trainer_by_the_weights_published_last(
    start: Callable[..., Server], tmp_path: Path, kind: str, tensor: int
) -> None:
    old, new = (make(tmp_path / str(seed), kind, seed) for seed in (1, 2))
    server = start(old, image_key="images", tensor_parallel=tensor)
    first, second = publish_and_generate(server, old, 0), publish_and_generate(server, new, 1)
    server.kill()
    assert difference(old, first) < 1e-4
    assert difference(new, second) < 1e-4, "nothing is left of what the former tower saw"
    assert difference(new, second, shown=False) > 0.05, "images must matter for this test to say anything"
