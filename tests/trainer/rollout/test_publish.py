"""Real servers: what is published is what is served, whole or not at all."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trainer.rollout import models
from trainer.rollout.servers import TOKEN, Server

from rljob_api.spec.common import Sampling
from rljob_trainer.rollout.client import Generation, ReplicaLost, RolloutClient
from rljob_trainer.weights.publisher import Published, Publisher

pytestmark = pytest.mark.slow

PROMPTS = [tuple(2 + (i * 7 + j * 3) % 120 for j in range(length)) for i, length in enumerate((5, 17, 150))]


def publish(server: Server, model: Path, step: int, attempt: int = 1) -> Published:
    return Publisher(attempt, TOKEN, "127.0.0.1", "cpu").publish(
        step, iter(models.tensors(model)), [server.endpoint], lambda: None
    )


def generate(server: Server, attempt: int = 1, n: int = 2, temperature: float = 0.7) -> list[list[Generation]]:
    """Responses to all PROMPTS."""

    async def ask() -> list[list[Generation]]:
        async with RolloutClient(server.endpoint, TOKEN, attempt) as client:
            sampling = Sampling(temperature=temperature, max_tokens=24)
            return await asyncio.gather(*(client.generate(p, n, sampling, seed=i) for i, p in enumerate(PROMPTS)))

    return asyncio.run(ask())


def difference(model: Path, answers: list[list[Generation]], temperature: float = 0.7) -> float:
    """Largest difference between the server's log-probabilities and Hugging Face's for `model`."""
    return max(
        (models.log_probs(model, prompt, g.tokens, temperature) - torch.tensor(g.log_probs)).abs().max().item()
        for prompt, group in zip(PROMPTS, answers, strict=True)
        for g in group
    )


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    return start(checkpoints["old"])


def test_published_weights_are_what_generates(server: Server, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ReplicaLost, match="503"):
        generate(server)
    for step, name in enumerate(("old", "new")):
        published = publish(server, checkpoints[name], step)
        assert published.ok == [server.endpoint.pod] and not published.failed
        answers = generate(server)
        assert difference(checkpoints[name], answers) < 1e-4
        assert {g.policy_step for group in answers for g in group} == {step}
    assert difference(checkpoints["old"], answers) > 0.1, "the two models must differ for this test to say anything"
    status, state = server.get("/rljob/state", Authorization=f"Bearer {TOKEN}")
    assert (status, json.loads(state)) == (200, {"attempt": 1, "policy_step": 1, "digest": published.version.digest})
