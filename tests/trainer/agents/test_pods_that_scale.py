"""Pods of agents that come with their calls: the whole driver, and pods that run real processes and reach it over loopback."""

import asyncio
from pathlib import Path

import pytest

from rljob_api.protocol import WorkerLoad
from trainer.agents.in_pods import bench_of_agents, each_once, in_pods, saying_where
from trainer.agents.talker import Talker, first_step
from trainer.driver.bench import Bench
from trainer.pod.pods import until
from trainer.workers.pods import Pod


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench_of_agents(tmp_path, monkeypatch)


async def test_calls_wait_for_pods_that_come_with_them_and_the_driver_says_how_many_it_needs(
    bench: Bench, tmp_path: Path
) -> None:
    where = tmp_path / "where"
    where.mkdir()
    in_pods(bench, tmp_path, saying_where(where))
    scaling = {"callsPerReplica": 4, "downSeconds": 60}
    bench.spec["rollout"]["agent"]["workers"] |= {"autoscaling": scaling}
    first, loads = Pod(bench), list[WorkerLoad]()
    step = asyncio.create_task(first_step(bench, Talker("demo-rollout-0"), delay=0.3))

    def counted() -> WorkerLoad:
        file = bench.directory / "progress.json"
        return (bench.progress().workers if file.exists() else {}).get("worker", WorkerLoad())

    await until(lambda: counted().calls > 8)
    second = Pod(bench, "demo-worker-1")
    while not step.done():
        loads.append(counted())
        await asyncio.sleep(0.05)
    found, _ = await step
    assert each_once(found) and found.metrics["agent/failed"] == 0.0
    assert max(load.calls for load in loads) <= 36 and all(load.needed >= load.calls / 4 for load in loads)
    assert {load.enough for load in loads} == {None}, "it has not been counted for a minute"
    assert len(list(where.iterdir())) == 2, "calls that waited went to the pod that came"
    await first.end()
    await second.end()
