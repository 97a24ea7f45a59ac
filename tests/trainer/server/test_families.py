"""Every family on a real server: what is published generates, with the log-probabilities of transformers."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from extra import extra_but
from rljob_api.families import FAMILIES
from rljob_api.spec.common import Sampling
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.kinds import KINDS, make_config
from trainer.megatron.models import load_model, random_model, response_log_probs
from trainer.server import models
from trainer.server.servers import TOKEN, Server

PROMPTS = [tuple(2 + (i * 7 + j * 3) % 120 for j in range(length)) for i, length in enumerate((5, 17, 90))]


def make(path: Path, kind: str, seed: int, **changes: int) -> Path:
    """A directory with a tokenizer, of a model whose distribution is far from uniform. vLLM's attention on CPU wants heads of 32 or more, and its
    Gemma 3 has no output layer of its own. `changes`: of the configuration."""
    tied = kind == "gemma3_text"
    config = make_config(kind, models.VOCABULARY, tied, hidden_size=128, max_position_embeddings=512)
    config.update(changes)
    model = random_model(config, seed)
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.15)
    models.save_tokenizer(path)
    model.save_pretrained(path)
    return path


def publish_and_generate(server: Server, model: Path) -> list[Generation]:
    """One response to each of PROMPTS."""
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    published = publisher.publish(0, iter(tensors(model)), [server.endpoint], lambda: None, None)
    assert not published.failed

    async def ask() -> list[Generation]:
        async with RolloutClient(server.endpoint, TOKEN, 1) as client:
            found = [
                client.generate(GenerationRequest(p, 1, Sampling(max_tokens=24), seed=i)) for i, p in enumerate(PROMPTS)
            ]
            return [g for group in await asyncio.gather(*found) for g in group]

    return asyncio.run(ask())


def tensors(model: Path) -> list[tuple[str, torch.Tensor]]:
    return [pair for file in sorted(model.glob("*.safetensors")) for pair in load_file(file).items()]


def difference(model: Path, answers: list[Generation]) -> float:
    policy, pairs = load_model(model), zip(PROMPTS, answers, strict=True)
    theirs = [
        (torch.tensor(response_log_probs(policy, p, tuple(map(int, g.tokens)), 1.0)), torch.tensor(g.log_probs))
        for p, g in pairs
    ]
    return max(float((a - b).abs().max()) for a, b in theirs)


VARIANTS = ("mistral, window", "phi3, window", "mixtral, window", "deepseek_v3, yarn")


def kinds() -> list[str]:
    """Of families that generate; and the variants in which a server computes something else. Those that read images: test_vision.py."""
    families = [name for name, family in FAMILIES.items() if "cpu" in family.servers and not family.vision]
    return [k for k in KINDS if k in VARIANTS or k in families]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", extra_but(("phi3, window", "gemma3_text", "mixtral", "glm4_moe", "deepseek_v3"), kinds())
)
def test_published_weights_generate_as_transformers_says(
    start: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    old, new = (make(tmp_path / str(seed), kind, seed) for seed in (1, 2))
    server = start(old)
    answers = publish_and_generate(server, new)
    server.kill()
    assert difference(new, answers) < 1e-4
    assert difference(old, answers) > 0.1, "the two models must differ for this test to say anything"
