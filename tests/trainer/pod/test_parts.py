"""A server of several pods: two supervisors, with stand-ins for vLLM's processes; the last tests have the real ones. The test is the operator."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import aiohttp
import psutil
import pytest
import torch

from rljob_api.protocol import Report, RolloutEndpoint
from rljob_api.server_group import ServerGroup, ServerPart
from rljob_trainer.machine import free_port
from rljob_trainer.pod import health, server_process, supervisor
from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.plan import GatherPhase
from rljob_trainer.wire.weights.protocol import PolicyVersion
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.pod.pods import Pod, control, is_running, until, words
from trainer.pod.watched import Watched, WatchedFollower
from trainer.rank.standing import Standing
from trainer.server import models
from trainer.server.servers import READY_SECONDS, TOKEN, spec

GENERATES = {"max-num-seqs": 5}
"""What has the stand-in serve."""


class Replica:
    """Pods of one server, and the operator's word on it."""

    def __init__(self, model: Path = Path("/model"), **rollout: object) -> None:
        self.pods = [Pod(model, f"demo-rollout-{rank}") for rank in range(2)]
        self.spec = spec(model, **({"nodes": 2, "tensorParallel": 2} | rollout))
        self.generation = 0

    def say(self, attempt: int = 1, listed: bool = True) -> None:
        """To all pods."""
        parts = [
            ServerPart(pod=pod.name, pod_uid="uid", boot_id=pod.boot_id, address="127.0.0.1", node_rank=rank)
            for rank, pod in enumerate(self.pods)
        ]
        group = ServerGroup(
            name="demo-rollout-0",
            generation=self.generation,
            parts=parts,
            master_port=self.port,
            rpc_port=self.rpc_port,
        )
        for pod in self.pods:
            said = control(self.spec, attempt).model_copy(update={"servers": [group] if listed else []})
            pod.channel.words.put_nowait(said)

    async def begin(self) -> None:
        """The next generation."""
        self.generation, self.port, self.rpc_port = self.generation + 1, free_port(), free_port()
        self.say()

    async def all(self, condition: Callable[[Report], bool], seconds: float = 120.0) -> list[Report]:
        return await asyncio.gather(*(pod.channel.wait(condition, seconds) for pod in self.pods))


async def readiness(pod: Pod) -> int:
    """What the kubelet's probe gets; 0: nobody answers."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://127.0.0.1:{pod.port}/health") as response:
                return response.status
        except aiohttp.ClientConnectionError:
            return 0


@asynccontextmanager
async def replica(model: Path = Path("/model"), **rollout: object) -> AsyncIterator[Replica]:
    """Once its pods have reported themselves."""
    made = Replica(model, **rollout)
    try:
        for pod in made.pods:
            await pod.channel.wait(lambda r: r.state == "idle")
        yield made
    finally:
        for pod in made.pods:
            await pod.end()


def processes(pod: Pod) -> list[psutil.Process]:
    """Those of the pod's part: first what its supervisor started."""
    mine = [p for p in psutil.Process().children() if str(pod.port) in words(p)]
    return [q for p in mine for q in (p, *p.children(recursive=True))]


def engine(pod: Pod) -> psutil.Process:
    return next(p for p in processes(pod) if health.ENGINE.search(" ".join(words(p))))


async def seen(pod: Pod) -> psutil.Process:
    """Its engine, once there is one and the health check has seen it."""
    await until(lambda: any(health.ENGINE.search(" ".join(words(p))) for p in processes(pod)))
    found = engine(pod)
    await Watched.has_seen(found)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(server_process, "HealthCheck", Watched)
    monkeypatch.setattr(server_process, "FollowerCheck", WatchedFollower)
    if "slow" not in request.keywords:
        monkeypatch.setattr(server_process, "SERVER", "trainer.pod.stand_in")
        monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.05)
        monkeypatch.setattr(supervisor, "READY_POLL_SECONDS", 0.05)
        monkeypatch.setattr(health, "POLL_SECONDS", 0.2)
        monkeypatch.setattr(server_process, "LAST_WORDS_SECONDS", 0.2)


async def test_parts_start_when_the_control_lists_them_and_end_when_it_does_not() -> None:
    async with replica(vllmArgs=GENERATES) as server:
        server.port, server.rpc_port = free_port(), free_port()
        server.say(listed=False)
        await server.all(lambda r: r.attempt == 1)
        assert [processes(pod) for pod in server.pods] == [[], []]
        assert [await readiness(pod) for pod in server.pods] == [0, 0]
        await server.begin()
        reports = await server.all(is_running)
        assert [r.failure for r in reports] == [None, None]
        assert await readiness(server.pods[1]) == 200
        head, follower = (words(processes(pod)[0]) for pod in server.pods)
        assert "--headless" in follower and "--headless" not in head
        for rank, command in enumerate((head, follower)):
            place = dict(pairwise(command))
            assert (place["--nnodes"], place["--node-rank"]) == ("2", str(rank))
            assert (place["--master-addr"], place["--master-port"]) == ("127.0.0.1", str(server.port))
        server.say(listed=False)
        reports = await server.all(lambda r: r.state == "idle")
        assert [r.failure for r in reports] == [None, None], "it was ended on purpose"
        assert [processes(pod) for pod in server.pods] == [[], []]
        assert await readiness(server.pods[1]) == 0


async def test_a_follower_whose_worker_is_killed_says_so_and_stays_down_until_all_parts_start_again() -> None:
    async with replica(vllmArgs=GENERATES) as server:
        await server.begin()
        await server.all(is_running)
        head, follower = server.pods
        worker = await seen(follower)
        worker.kill()
        report = await follower.channel.wait(lambda r: r.failure is not None)
        assert report.state == "idle" and report.failure
        assert (report.failure.kind, report.failure.exception) == ("killed", "ServerLost")
        assert report.failure.message == f"the server was killed: the engine's process {worker.pid} ended"
        assert report.failed_generation == 1
        before = engine(head)
        server.say()  # the same generation again
        server.say(attempt=2)
        await follower.channel.wait(lambda r: r.attempt == 2)
        assert processes(follower) == [] and engine(head) == before
        await server.begin()
        await head.channel.wait(lambda r: r.state == "idle")
        assert not before.is_running() or before.status() == psutil.STATUS_ZOMBIE
        reports = await server.all(is_running)
        assert [r.failure for r in reports] == [None, None]


async def test_a_follower_does_not_outlive_its_head_and_calls_the_cause_elsewhere() -> None:
    """Nobody has told it: the operator may be down."""
    async with replica(vllmArgs=GENERATES) as server:
        await server.begin()
        await server.all(is_running)
        (await seen(server.pods[0])).kill()
        lost, seen_of_it = await server.all(lambda r: r.failure is not None)
        assert lost.failure and lost.failure.kind == "killed"
        assert seen_of_it.failure and seen_of_it.failure.kind == "collective"
        assert seen_of_it.failure.message == "the server was killed: the server's head at 127.0.0.1 ended"
        assert [processes(pod) for pod in server.pods] == [[], []]
        await server.begin()
        await server.all(is_running)


async def test_a_worker_of_a_follower_that_is_stopped_is_named_by_its_own_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STILL_SECONDS", 2.0)
    async with replica(vllmArgs=GENERATES) as server:
        await server.begin()
        await server.all(is_running)
        _, follower = server.pods
        (worker := await seen(follower)).suspend()
        failure = (await follower.channel.wait(lambda r: r.failure is not None)).failure
        assert failure and failure.kind == "killed"
        assert f"the engine's process {worker.pid} has not run for 2 s (stopped)" in failure.message


async def test_a_follower_is_not_ready_before_its_workers_are_up() -> None:
    async with replica(vllmArgs={"max-num-seqs": 13}) as server:
        await server.begin()
        follower = server.pods[1]
        await until(lambda: bool(processes(follower)))
        assert await readiness(follower) == 0
        await server.all(is_running)
        assert await readiness(follower) == 200


async def test_parts_wait_for_those_that_load_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """For twice the limit of a whole server, in which they neither log nor read."""
    monkeypatch.setattr(health, "STUCK_SECONDS", 5.0)
    async with replica(vllmArgs={"max-num-seqs": 13}) as server:
        await server.begin()
        await server.all(is_running)
        assert [r for pod in server.pods for r in pod.channel.reports if r.failure] == []


async def test_parts_that_all_hang_while_they_load_are_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "STUCK_PART_SECONDS", 3.0)
    async with replica(vllmArgs={"max-num-seqs": 13}) as server:
        await server.begin()
        for report in await server.all(lambda r: r.failure is not None):
            assert report.failure and report.failed_generation == 1
            assert "neither logged nor read anything for 3 s while it started" in report.failure.message


async def test_a_follower_that_fails_to_start_is_reported_with_its_workers_error() -> None:
    async with replica(vllmArgs={"max-num-seqs": 12}) as server:
        await server.begin()
        failure = (await server.pods[1].channel.wait(lambda r: r.failure is not None)).failure
        assert failure and (failure.kind, failure.exception) == ("application", "OutOfMemoryError")
        assert failure.message == "CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.extra
@pytest.mark.parametrize("when", ["received", "applied"])
async def test_real_workers_over_two_pods_start_again_together_after_one_was_killed_in_an_update(
    tmp_path: Path, when: str
) -> None:
    """While buckets are received, or between the last one and their application."""
    model = models.make(tmp_path / "model", seed=1)
    async with replica(model, tensorParallel=2) as server:
        await server.begin()
        await server.all(is_running, READY_SECONDS)
        head, follower = server.pods
        assert (await head.state(1))["policy_step"] is None
        assert [await readiness(pod) for pod in server.pods] == [200, 200]
        family = [*processes(head), *processes(follower)]
        worker = await seen(follower)
        with Standing("other") as other:
            servers = [head.endpoint, other.endpoint]
            published, seconds = await asyncio.to_thread(update, servers, 0, model, worker, when)
            assert (published.ok, list(published.failed)) == (["other"], ["demo-rollout-0"])
            assert seconds < protocol.SILENT_SECONDS
            report = await follower.channel.wait(lambda r: r.failure is not None)
            assert report.failure and report.failure.message.endswith(f"the engine's process {worker.pid} ended")
            assert await readiness(follower) == 0
            await server.begin()
            await head.channel.wait(lambda r: r.state == "idle")
            await server.all(is_running, READY_SECONDS)
            assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
            published, _ = await asyncio.to_thread(update, servers, 1, model)
            assert (published.ok, published.failed) == (["demo-rollout-0", "other"], {})
            assert (await head.state(1))["digest"] == published.version.digest == other.served[-1]


def update(
    servers: list[RolloutEndpoint], step: int, model: Path, worker: psutil.Process | None = None, when: str = ""
) -> tuple[Published, float]:
    """An update of these servers, in the middle of which a worker is killed, and the seconds that it took from then on."""
    publisher, tensors = Publisher(1, TOKEN, replace(over_tcp("127.0.0.1"), bucket_bytes=2**16)), models.tensors(model)
    killed = time.monotonic()

    def kill(moment: str) -> None:
        nonlocal killed
        if worker and moment == when:
            worker.kill()
            killed = time.monotonic()

    def exported() -> Iterator[tuple[str, torch.Tensor]]:
        for i, named in enumerate(tensors):
            if i == len(tensors) // 2:
                kill("received")
            yield named

    with publisher.update(servers) as opening:
        opened = opening.open([publisher.sender.offer])
        sent = publisher.sender.send([GatherPhase(exported(), sends=True)], opened, 0, lambda: None)
        kill("applied")
        version = PolicyVersion(1, step, sent.digest)
        return opening.commit(version, [sent], None), time.monotonic() - killed


@pytest.mark.extra
@pytest.mark.parametrize("cut", ["pipelineParallel", "dataParallel"])
async def test_real_stages_or_copies_in_two_pods_end_with_the_head(tmp_path: Path, cut: str) -> None:
    model = models.make(tmp_path / "model", seed=1)
    async with replica(model, tensorParallel=1, **{cut: 2}) as server:
        await server.begin()
        await server.all(is_running, READY_SECONDS)
        assert [await readiness(pod) for pod in server.pods] == [200, 200]
        family = [q for pod in server.pods for q in processes(pod)]
        (await seen(server.pods[0])).kill()
        lost, seen_of_it = await server.all(lambda r: r.failure is not None)
        assert lost.failure and lost.failure.kind == "killed"
        assert seen_of_it.failure and seen_of_it.failure.kind == "collective"
        assert psutil.wait_procs(family, timeout=60)[1] == []
