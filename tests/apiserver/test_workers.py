"""Worker pods whose number follows their calls, before a real API server."""

from typing import Any

import pytest

from apiserver.lab import Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api.protocol import WorkerLoad

pytestmark = pytest.mark.slow
WORKERS = {"replicas": 4, "autoscaling": {"callsPerReplica": 8}}
AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": WORKERS}


async def follow(world: Lab, pods: int, **said: Any) -> None:
    """The driver says so, and there are so many pods."""
    rank0 = world.launcher(0)
    assert rank0.progress
    rank0.progress = rank0.progress.model_copy(update={"workers": {"worker": WorkerLoad(**said)}})

    async def all_of_them() -> bool:
        return world.status.workers.text == f"{pods}/{pods}"

    await world.turn_until(all_of_them, f"{pods} workers")
    assert world.status.worker_replicas == {"worker": pods}


async def test_workers_come_and_go_with_their_calls_without_a_restart(plane: ControlPlane) -> None:
    async with lab(plane, "workers", Faults(watch_seconds=2.0, doubled=True)) as world:
        await world.submit(rollout={"replicas": 1, "sampling": {"maxTokens": 8}, "agent": AGENT})
        await world.until(state="Running", attempt=1)
        await follow(world, 1)
        await follow(world, 3, calls=20, needed=3)
        await follow(world, 4, calls=400, needed=50)
        await follow(world, 2, calls=1, needed=1, enough=2)
        await follow(world, 1, enough=0)
        assert world.status.attempt and (world.status.attempt.number, world.status.restarts.total) == (1, 0)
