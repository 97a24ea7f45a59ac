"""A colocated server whose engine is killed: what a rank sees of it is not why the attempt ended. Processes are real, vLLM is a stand-in."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_trainer import failure
from rljob_trainer.machine import free_port, memory_limit, oom_kills
from rljob_trainer.pod import server_process
from rljob_trainer.pod.attempt import await_cause
from rljob_trainer.pod.server_process import ServerProcess
from rljob_trainer.rank.weights.call import ReplicaError
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.wire.rollout_client import answers
from rljob_trainer.wire.weights.transport import over_tcp

TOKEN, SECONDS = "token", 120.0


def environment() -> dict[str, str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return dict(os.environ) | {"PYTHONPATH": path, names.ENV_ROLLOUT_TOKEN: TOKEN}


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ServerProcess, RolloutEndpoint]]:
    """It answers, and has an engine."""
    monkeypatch.setattr(server_process, "SERVER", "trainer.pod.stand_in")
    endpoint = RolloutEndpoint(pod="server", pod_uid="uid", url=f"http://127.0.0.1:{(port := free_port())}")
    arguments = ["--max-num-seqs", "5", "--port", str(port)]
    started = await ServerProcess.start(arguments, environment(), endpoint.url, "spec.rollout")
    async with asyncio.timeout(SECONDS):
        while not await answers(endpoint, TOKEN, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    yield started, endpoint
    await started.stop()


async def test_a_process_that_left_the_servers_session_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "SERVER", "trainer.pod.with_orphan")
    started = await ServerProcess.start([], environment(), "http://127.0.0.1:1", "spec.rollout")
    async with asyncio.timeout(SECONDS):
        while "orphan" not in started._log:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    orphan = psutil.Process(int(started._log.split()[1]))
    await asyncio.wait_for(started.stop(), SECONDS)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


async def test_a_server_that_was_killed_for_memory_is_called_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel counts its kills in the container's cgroup, here a directory."""
    (tmp_path / "memory.events").write_text("oom_kill 4\n")
    (tmp_path / "memory.max").write_text(f"{2**33}\n")
    monkeypatch.setattr(server_process, "SERVER", "trainer.pod.with_orphan")
    monkeypatch.setattr(server_process, "oom_kills", partial(oom_kills, tmp_path))
    monkeypatch.setattr(server_process, "memory_limit", partial(memory_limit, tmp_path))
    started = await ServerProcess.start([], environment(), "http://127.0.0.1:1", "spec.rollout")
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    os.kill(started.pid, signal.SIGKILL)
    found = await asyncio.wait_for(started.end(), SECONDS)
    assert (found.kind, found.exception) == ("killed", "OutOfMemory")
    assert "the container's limit is 8.0 GiB" in found.message


def engine_of(server: ServerProcess) -> psutil.Process:
    (engine,) = psutil.Process(server._process.pid).children()
    return engine


async def test_an_engine_that_was_killed_is_the_cause_and_not_what_a_rank_saw_of_it(
    server: tuple[ServerProcess, RolloutEndpoint], tmp_path: Path
) -> None:
    started, endpoint = server
    publisher = Publisher(1, TOKEN, over_tcp("127.0.0.1"))
    publisher.sleep([endpoint])

    async def end() -> int:
        failure.record(tmp_path, failure.SERVER, await started.end())
        return 1

    ended, engine = asyncio.create_task(end()), engine_of(started)
    async with asyncio.timeout(SECONDS):
        while engine not in started._check._engine._engines:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    engine.kill()
    with pytest.raises((ReplicaError, failure.RolloutLost)) as seen:
        while True:
            await asyncio.to_thread(publisher.sleep, [endpoint])
    failure.write(tmp_path, 0, seen.value)
    await await_cause(tmp_path, None, ended)
    cause = failure.read_first(tmp_path)
    assert cause and cause.exception == "ServerLost"
    assert cause.message == f"the server was killed: the engine's process {engine.pid} ended"
