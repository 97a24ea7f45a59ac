"""A real server of two data-parallel copies in two pods, which share the experts of a mixture."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.spec.common import Sampling
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.parity import Probe
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from rljob_trainer.wire.weights.bucket import payload_size
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.models import load_model, response_log_probs
from trainer.server.digests import logged, received
from trainer.server.servers import TOKEN, Server, spec
from trainer.server.test_families import PROMPTS, difference, make, publish_and_generate, tensors

pytestmark = pytest.mark.slow

SPREAD = {"nodes": 2, "dataParallel": 2, "expertParallel": True}
LIMIT_SECONDS = 120.0
NAME = 100
"""Bytes by which a connection begins, at most."""
RUNNING = re.compile(r'vllm:num_requests_running\{engine="(\d)".*\} (\d+)')


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("policies")
    return {name: make(root / name, "qwen3_moe", seed) for name, seed in (("old", 1), ("new", 2))}


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], policies: dict[str, Path]) -> Server:
    return start(policies["old"], job=spec(policies["old"], **SPREAD))


def publish(server: Server, model: Path, step: int) -> Published:
    policy = load_model(model)
    log_probs = tuple(tuple(response_log_probs(policy, p[:1], p[1:], 1.0)) for p in PROMPTS)
    probe, publisher = Probe(tuple(PROMPTS), log_probs, "float32"), Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    return publisher.publish(step, iter(tensors(model)), [server.endpoint], lambda: None, probe)


def test_an_update_leaves_on_every_copy_what_loading_its_files_does(server: Server, policies: dict[str, Path]) -> None:
    """The first is loaded over the weights, the others next to them."""
    for follower in server.followers:
        follower.wait()
    for step, name in enumerate(("old", "new", "old", "new")):
        published = publish(server, policies[name], step)
        assert published.ok and published.difference and published.difference[1] < 1e-4
    assert difference(policies["old"], publish_and_generate(server, policies["old"])) < 1e-4
    digests = [digest for part in (server, *server.followers) for digest in logged(part.log).items()]
    assert sorted(worker for worker, _ in digests) == [0, 1], (
        "each worker by its place in the server, in a pod of its own"
    )
    for _, (loaded, first, second, third, _) in digests:
        assert loaded == first == third != second
    assert len({seen[0] for _, seen in digests}) == 2, "each holds experts of its own"


def test_each_copy_receives_the_bytes_of_what_it_has(server: Server, policies: dict[str, Path]) -> None:
    """Its own experts, half of them, and what all copies have."""
    publisher, policy = Publisher(1, TOKEN, over_tcp("127.0.0.1")), tensors(policies["new"])
    for step in (10, 11):
        assert publisher.publish(step, iter(policy), [server.endpoint], lambda: None).ok
    experts = [payload_size([t.nbytes]) for name, t in policy if ".experts." in name]
    shared = payload_size(t.nbytes for name, t in policy if ".experts." not in name)
    found = [seen for part in (server, *server.followers) for seen in received(part.log).values()]
    assert len(found) == 2
    for *_, (first, groups), (both, _) in found:
        for updates, size in ((1, first), (2, both)):
            planned = updates * (shared + sum(experts) // 2)
            assert planned <= size < planned + NAME * groups, f"{sum(experts) + shared} bytes are a whole policy"


def test_all_copies_stop_and_go_on_together(server: Server, policies: dict[str, Path]) -> None:
    publish(server, policies["new"], 5)
    for _ in range(3):
        answers = asyncio.run(interrupted(server))
        reasons = {g.finish_reason for g in answers}
        assert "abort" in reasons and "length" not in reasons, (
            "a copy that continues comes to the longest length in half of its responses"
        )
        assert reasons <= {"abort", "stop"} and {g.policy_step for g in answers} == {5}
    assert difference(policies["new"], publish_and_generate(server, policies["new"])) < 1e-4


async def interrupted(server: Server) -> list[Generation]:
    """Responses of requests that were interrupted while both copies computed."""
    async with RolloutClient(server.endpoint, TOKEN, 1) as client:
        sampling = Sampling(temperature=1.0, max_tokens=100)
        asked = [GenerationRequest(p, 4, sampling, seed=i) for i, p in enumerate(PROMPTS)]
        waiting = asyncio.gather(*(client.generate(request) for request in asked))
        async with asyncio.timeout(LIMIT_SECONDS):
            while not await asyncio.to_thread(all_run, server):
                assert not waiting.done(), "they ended before both copies were seen to compute"
                await asyncio.sleep(0.01)
        await client.interrupt()
        return [g for group in await waiting for g in group]


def all_run(server: Server) -> bool:
    """Whether each copy has requests that run, by the API server's metrics."""
    running = dict(RUNNING.findall(server.get("/metrics")[1]))
    return running.keys() == {"0", "1"} and "0" not in running.values()
