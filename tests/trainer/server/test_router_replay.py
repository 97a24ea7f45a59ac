"""The experts of a real server in the trainer: bfloat16 routes tokens differently in both, until the trainer replays them."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from rljob_trainer.wire.trajectory import Trajectory
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.models import job, train_step
from trainer.ranks import run_ranks
from trainer.server.servers import TOKEN, Server, spec
from trainer.server.test_families import make, tensors

PROMPTS = [tuple(2 + (i * 7 + j * 3) % 120 for j in range(5 + 3 * i)) for i in range(8)]
SAMPLES, LAYERS, EXPERTS, CHOSEN = 2, 4, 32, 4


def correction(replay: str) -> dict[str, Any]:
    return {"rolloutCorrection": {"importanceSampling": "token", "routerReplay": replay}}


def replaying(start: Callable[..., Server], model: Path, dtype: str, **rollout: object) -> Server:
    """A server of a job that replays its experts, with the weights of `model`."""
    given = spec(model, **rollout).model_dump(by_alias=True, exclude_defaults=True)
    changes = {"model": {"path": str(model), "dtype": dtype}, "algorithm": correction("rollout")}
    server = start(model, job=RLJobSpec.model_validate(given | changes))
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    weights = ((name, tensor.to(getattr(torch, dtype))) for name, tensor in tensors(model))
    assert not publisher.publish(0, weights, [server.endpoint], lambda: None, None).failed
    return server


def generated(server: Server, prompts: list[tuple[int, ...]]) -> list[list[Generation]]:
    async def ask() -> list[list[Generation]]:
        async with RolloutClient(server.endpoint, TOKEN, 1) as client:
            asked = (
                client.generate(GenerationRequest(p, SAMPLES, Sampling(max_tokens=40), seed=i))
                for i, p in enumerate(prompts)
            )
            return await asyncio.gather(*asked)

    return asyncio.run(ask())


def batch_of(groups: list[list[Generation]]) -> Batch:
    return Batch.of(
        1,
        [
            Trajectory.of_response(
                PROMPTS[group],
                g.tokens,
                g.log_probs,
                0,
                prompt_index=group,
                group=group,
                sample=sample,
                finish_reason="stop",
                reward=float(sample),
                data_source="test",
                routed_experts=g.routed_experts,
            )
            for group, found in enumerate(groups)
            for sample, g in enumerate(found)
        ],
        {},
    )


def trained(model: Path, batch: Batch, replay: str) -> dict[str, float]:
    def on_a_rank() -> dict[str, float]:
        from rljob_trainer.megatron.engine import Engine

        algorithm = correction(replay)
        trained = job(model, dtype="bfloat16", algorithm=algorithm, miniBatches=2, tokensPerMicroBatch=512)
        return train_step(Engine(trained, lambda: None), batch)

    return run_ranks(1, on_a_rank)[0]


@pytest.mark.slow
def test_replayed_experts_bring_trainer_and_rollouts_closer(start: Callable[..., Server], tmp_path: Path) -> None:
    from rljob_trainer.megatron import compat

    torch.set_num_threads(1)
    compat.install()
    model = make(tmp_path, "qwen3_moe", 1, num_experts=EXPERTS, num_experts_per_tok=CHOSEN)
    server = replaying(start, model, "bfloat16")
    groups = generated(server, PROMPTS)
    server.kill()
    for prompt, g in ((p, g) for p, found in zip(PROMPTS, groups, strict=True) for g in found):
        assert g.routed_experts is not None
        assert g.routed_experts.shape == (len(prompt) + len(g.tokens) - 1, LAYERS, CHOSEN)
        assert (np.diff(np.sort(g.routed_experts)) > 0).all(), "each token goes to different experts"
    batch = batch_of(groups)
    found = {replay: trained(model, batch, replay) for replay in ("none", "rollout")}
    name = "train_rollout/log_prob_diff_mean"
    assert found["rollout"][name] < found["none"][name]


@pytest.mark.slow
def test_a_server_returns_experts_whose_numbers_take_two_bytes(start: Callable[..., Server], tmp_path: Path) -> None:
    model = make(tmp_path, "qwen3_moe", 1, num_experts=300, num_experts_per_tok=CHOSEN)
    server = replaying(start, model, "float32")
    groups = generated(server, PROMPTS[:2])
    server.kill()
    for g in (g for found in groups for g in found):
        assert g.routed_experts is not None and g.routed_experts.dtype == np.int16
        assert 255 < g.routed_experts.max() < 300 and g.routed_experts.min() >= 0
        assert (np.diff(np.sort(g.routed_experts)) > 0).all(), "each token goes to different experts"


@pytest.mark.slow
def test_experts_of_cached_tokens_come_back_also_where_every_layer_sees_a_window(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    model = make(tmp_path, "mixtral", 1, sliding_window=16)
    server = replaying(start, model, "float32", vllmArgs={"block-size": 16})
    prompt = tuple(2 + i * 7 % 120 for i in range(60))
    [[first, _]], [[second, _]] = generated(server, [prompt]), generated(server, [prompt])
    cached = re.search(r"^vllm:prefix_cache_hits_total{.*} (.*)$", server.get("/metrics")[1], re.MULTILINE)
    server.kill()
    assert cached and float(cached[1]) >= 32
    assert np.array_equal(first.tokens, second.tokens)
    assert first.routed_experts is not None and second.routed_experts is not None
    assert np.array_equal(first.routed_experts, second.routed_experts)
