"""Real servers that die: the pool answers every request once, and a publish to a dead or frozen replica ends in time."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rljob_api.spec.common import Sampling
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.server import models
from trainer.server.servers import TOKEN, Server

pytestmark = pytest.mark.slow


def publish(servers: list[Server], model: Path, step: int) -> Published:
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    return publisher.publish(step, iter(models.tensors(model)), [s.endpoint for s in servers], lambda: None)


@pytest.fixture(scope="module")
def servers(start: Callable[..., Server], checkpoints: dict[str, Path]) -> list[Server]:
    return [start(checkpoints["old"]) for _ in range(2)]


async def test_a_server_killed_mid_generation_costs_no_answer(
    servers: list[Server], checkpoints: dict[str, Path]
) -> None:
    new = checkpoints["new"]
    published = await asyncio.to_thread(publish, servers, new, 1)
    assert sorted(published.ok) == sorted(s.endpoint.pod for s in servers)
    pool = RolloutPool(TOKEN, 1, 1, 16, lambda: None)
    await pool.follow([server.endpoint for server in servers])
    await pool.published(1, pool.listed, {})
    prompts = [(2 + i, 3, 4) for i in range(40)]
    sampling = Sampling(temperature=1.0, max_tokens=100)
    asked = [
        asyncio.create_task(pool.generate(GenerationRequest(p, 4, sampling, seed=i))) for i, p in enumerate(prompts)
    ]
    await asyncio.sleep(0.5)  # until the servers are in the middle of their answers
    servers[1].kill()
    groups: list[list[Generation]] = await asyncio.wait_for(asyncio.gather(*asked), 600)
    assert pool.redispatched > 0 and [r.pod for r in pool.current] == [servers[0].endpoint.pod]
    assert len(groups) == 40 and all(len(g) == 4 for g in groups)
    for generation in (g for group in groups for g in group):  # rl.md 8d, pitfall 9: the end is there once, and last
        ends = [i for i, token in enumerate(generation.tokens) if token == models.END]
        assert ends == ([len(generation.tokens) - 1] if generation.finish_reason == "stop" else [])
    assert {g.finish_reason for group in groups for g in group} == {"stop", "length"}
    for prompt, group in zip(prompts[::8], groups[::8], strict=True):
        for generation in group:
            difference = models.log_probs(new, prompt, generation.tokens) - torch.tensor(generation.log_probs)
            assert difference.abs().max() < 1e-4
    await pool.close()


def test_a_dead_and_a_frozen_replica_fail_in_time_and_alone(
    servers: list[Server], start: Callable[..., Server], checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server is dead since the test before."""
    monkeypatch.setattr(protocol, "OPEN_SECONDS", 10.0)
    monkeypatch.setattr(protocol, "ABORT_SECONDS", 3.0)
    frozen = start(checkpoints["old"])
    os.killpg(frozen.pid, signal.SIGSTOP)
    published = publish([*servers, frozen], checkpoints["old"], 2)
    assert published.ok == [servers[0].endpoint.pod]
    assert "ConnectionRefusedError" in published.failed[servers[1].endpoint.pod]
    assert "TimeoutError" in published.failed[frozen.endpoint.pod]
    os.killpg(frozen.pid, signal.SIGCONT)
    monkeypatch.undo()
    tries = (
        publish([frozen], checkpoints["old"], 2) for _ in range(5)
    )  # the first may still meet what it had slept through
    assert next((p.ok for p in tries if p.ok), None) == [frozen.endpoint.pod]
