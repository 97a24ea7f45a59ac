"""Samples with images, and what transformers says of them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.images import Image, Placed
from rljob_trainer.wire.trajectory import Trajectory, prompt, sampled
from trainer.megatron.kinds import QWEN_VL
from trainer.megatron.models import load_model, make_batch

PAD, FIRST, LAST = (QWEN_VL[f"{name}_token_id"] for name in ("image", "vision_start", "vision_end"))
GRIDS = ((4, 4), (2, 6), (8, 4))
"""Of patches: 4, 3 and 8 tokens."""


def make_image(grid: tuple[int, int], seed: int, width: int = 3 * 2 * 4 * 4, merge: int = 2) -> Image:
    """Of patches of so many numbers, of which `merge` x `merge` become a token."""
    draw = np.random.default_rng(seed)
    return Image(draw.standard_normal((grid[0] * grid[1], width), np.float32), grid, merge)


def image_for(vision: Any, tokens: tuple[int, int], seed: int) -> Image:
    """Of so many rows and columns of tokens, cut into patches as the configuration of a tower says."""
    merge, channels = vision.spatial_merge_size, getattr(vision, "in_channels", None) or vision.in_chans
    width = channels * vision.temporal_patch_size * vision.patch_size**2
    return make_image((tokens[0] * merge, tokens[1] * merge), seed, width, merge)


def with_images(sample: Trajectory, count: int, model: Any) -> Trajectory:
    """The sample with so many images in its prompt, and what transformers says of its response."""
    draw = random.Random(f"{sample.group}")
    tokens, images = [draw.randrange(100)], list[Placed]()
    for i in range(count):
        image = make_image(GRIDS[(sample.group + i) % len(GRIDS)], 7 * sample.group + i)
        images.append((len(tokens) + 1, image))
        tokens += [FIRST, *[PAD] * image.tokens, LAST, draw.randrange(100)]
    tokens += _texts(sample.prompt_tokens).tolist()
    response = _texts(sample.response_tokens)
    log_probs = image_log_probs(model, tokens, images, response)
    return replace(sample, segments=(prompt(tokens, images), sampled(response, log_probs, sample.policy_steps[-1])))


def sharing_images(batch: Batch) -> Batch:
    """The same, where images that are alike are one in memory, as those of a prompt's samples are on a rank."""
    known: dict[bytes, Image] = {}
    one = lambda image: known.setdefault(image.pixels.tobytes(), image)  # noqa: E731
    shared = lambda s: replace(s, images=tuple((at, one(image)) for at, image in s.images))  # noqa: E731
    samples = [replace(t, segments=tuple(shared(s) for s in t.segments)) for t in batch.samples]
    return Batch.of(batch.step, samples, batch.metrics)


def _texts(tokens: np.ndarray) -> np.ndarray:
    """Without the image token: transformers wants an image for each."""
    return np.where(tokens == PAD, 0, tokens)


@torch.no_grad()
def image_log_probs(model: Any, tokens: list[int], images: list[Placed], response: np.ndarray) -> np.ndarray:
    whole = torch.tensor([[*tokens, *response.tolist()]])
    given = {}
    if images:
        given["pixel_values"] = torch.from_numpy(np.concatenate([i.pixels for _, i in images]))
        given["image_grid_thw"] = torch.tensor([(1, *i.grid) for _, i in images])
        given["mm_token_type_ids"] = (whole == PAD).int()
    logits = model(whole, **given).logits[0, len(tokens) - 1 : -1]
    return logits.log_softmax(-1).gather(1, whole[0, len(tokens) :, None])[:, 0].numpy()


def make_vision_batch(model: Path, step: int = 1) -> Batch:
    """Samples of four prompts: without an image, with one, with two and with three."""
    policy = load_model(model)
    batch = make_batch(model, step)
    return Batch.of(step, [with_images(s, s.group, policy) for s in batch.samples], {})
