"""Servers of several pods before a real API server: started, lost and scaled as a whole."""

from collections.abc import Callable

import pytest

from apiserver.lab import Lab, lab
from apiserver.proxy import Faults
from e2e.control_plane import ControlPlane
from rljob_api import names
from rljob_operator.kube.api import Object

pytestmark = pytest.mark.slow
SERVERS = {"replicas": 2, "nodes": 2, "tensorParallel": 2, "sampling": {"maxTokens": 8}}


async def answer(world: Lab, count: int, holds: Callable[[], bool] = lambda: True) -> None:
    """So many servers, by their heads."""

    async def all_of_them() -> bool:
        heads = [endpoint.pod for endpoint in world.control.rollouts] if world.control else []
        return len(heads) == world.status.rollout.ready == count and holds()

    await world.turn_until(all_of_them, f"{count} servers answer")


def generations(world: Lab) -> list[int]:
    return [server.generation for server in world.status.servers]


async def scale(world: Lab, servers: int) -> Object:
    """As `kubectl scale` and an autoscaler do."""
    where = f"/apis/rljob.dev/v1alpha1/namespaces/{world.namespace}/rljobs/demo/scale"
    body = {"spec": {"replicas": servers}}
    await world._api._request("PATCH", "RLJob", where, body, content="application/merge-patch+json")
    found: Object = await world._api._request("GET", "RLJob", where, None)
    return found


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_servers_are_lost_and_scaled_as_a_whole(plane: ControlPlane, backend: str) -> None:
    async with lab(plane, f"servers-{backend}", Faults(watch_seconds=2.0, doubled=True)) as world:
        await world.submit(rollout=SERVERS, scheduling={"backend": backend})
        await world.until(state="Running", attempt=1)
        await answer(world, 2)
        await world.remove_child("Pod", "demo-rollout-3")
        await answer(world, 2, lambda: generations(world) == [1, 2])
        found = await scale(world, 3)
        await answer(world, 3)
        found = await scale(world, 1)
        await answer(world, 1, lambda: len(world.parts) == 2)
        assert found["spec"]["replicas"] == 1
        heads = await world._api.listing("Pod", world.namespace, found["status"]["selector"])
        assert {pod["metadata"]["labels"][names.LABEL_HEAD] for pod in heads.objects} == {"true"}
        assert world.status.attempt and (world.status.attempt.number, world.status.restarts.total) == (1, 0)
