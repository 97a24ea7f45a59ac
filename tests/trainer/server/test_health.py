"""Dead and frozen servers, with vLLM's own."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from rljob_api.spec.common import Sampling
from rljob_trainer.pod import health
from rljob_trainer.pod.health import ENGINE, Lost
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.rollout_client import GenerationRequest, RolloutClient
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.pod.watched import Watched
from trainer.server import models
from trainer.server.servers import TOKEN, Server


def engine(server: Server) -> psutil.Process:
    """The server's engine process."""
    (found,) = [p for p in psutil.Process(server.pid).children(recursive=True) if ENGINE.search(" ".join(p.cmdline()))]
    return found


@asynccontextmanager
async def checked(server: Server) -> AsyncIterator["asyncio.Task[Lost]"]:
    """The check of a server, once it has seen it healthy; cancelled at the end."""
    check = Watched(server.pid, server.endpoint.url, TOKEN)
    task = asyncio.create_task(check.lost())
    await check.has_seen_it_healthy()
    assert not task.done()
    yield task
    task.cancel()


def publish(server: Server, model: Path) -> None:
    published = Publisher(1, TOKEN, over_tcp("127.0.0.1")).publish(
        1, iter(models.tensors(model)), [server.endpoint], lambda: None
    )
    assert published.ok


@pytest.fixture(scope="module")
def server(start: Callable[..., Server], checkpoints: dict[str, Path]) -> Server:
    return start(checkpoints["old"])


@pytest.mark.slow
async def test_no_alarm_while_a_server_generates_and_takes_updates(
    server: Server, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FROZEN_SECONDS", 10.0)
    sampling = Sampling(temperature=1.0, max_tokens=90)
    async with checked(server) as lost, RolloutClient(server.endpoint, TOKEN, 1) as client:
        deadline = time.monotonic() + 12
        while time.monotonic() < deadline:
            await asyncio.to_thread(publish, server, checkpoints["new"])
            await client.generate(GenerationRequest((5, 6, 7), 64, sampling, 1))
            assert not lost.done()


@pytest.mark.slow
async def test_a_killed_engine_is_noticed_long_before_it_would_count_as_frozen(server: Server) -> None:
    """The last test of this server."""
    async with checked(server) as lost:
        engine(server).kill()
        assert (await asyncio.wait_for(lost, health.FROZEN_SECONDS)).dead, (
            "whoever saw it first: the processes, or vLLM's API server"
        )
    assert health.POLL_SECONDS < 5, "how soon, on a machine that is not busy"


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["engine", "server"])
async def test_a_stopped_process_is_noticed_within_the_limit(
    start: Callable[..., Server], checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, whom: str
) -> None:
    monkeypatch.setattr(health, "FROZEN_SECONDS", 6.0)
    monkeypatch.setattr(health, "ANSWER_SECONDS", 3.0)
    server = start(checkpoints["old"])
    async with checked(server) as lost:
        os.kill(engine(server).pid if whom == "engine" else server.pid, signal.SIGSTOP)
        began = time.monotonic()
        reason = (await asyncio.wait_for(lost, 600)).reason
        assert f"the {'engine' if whom == 'engine' else 'API server'} has not answered for" in reason
        assert time.monotonic() - began > 6.0, "a moment of silence is no end"


@pytest.mark.slow
async def test_an_update_that_waits_for_the_trainer_is_no_alarm_and_one_of_a_frozen_engine_is(
    start: Callable[..., Server], checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STILL_SECONDS", 4.0)
    server = start(checkpoints["old"])
    tensors = list(models.tensors(checkpoints["new"]))
    reached, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors[:-1]
        reached.set()
        go_on.wait(600)
        yield tensors[-1]

    def publish_slowly() -> dict[str, str]:
        transport = replace(over_tcp("127.0.0.1"), bucket_bytes=1)
        return Publisher(1, TOKEN, transport).publish(1, slowly(), [server.endpoint], lambda: None).failed

    async with checked(server) as lost:
        published = asyncio.create_task(asyncio.to_thread(publish_slowly))
        await asyncio.to_thread(reached.wait, 600)
        await asyncio.sleep(3 * health.STILL_SECONDS)  # nothing may be found meanwhile
        assert not lost.done(), "it is the trainer that takes its time"
        engine(server).suspend()
        began = time.monotonic()
        assert "has not run for 4 s (stopped)" in (await asyncio.wait_for(lost, 600)).reason
        assert time.monotonic() - began < health.FROZEN_SECONDS
        os.killpg(server.pid, signal.SIGKILL)
        go_on.set()
        assert await published, "it is given up, and the trainer goes on"
