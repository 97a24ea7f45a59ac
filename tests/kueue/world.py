"""A namespace with a queue and the job `demo`: controllers, scheduler and Kueue are real, kubelets are KWOK's, launchers alone are played."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from apiserver.world import TURN, RealWorld, administrator
from e2e import kueue
from e2e.control_plane import ControlPlane
from rljob_operator.kube.api import NotFound, Object
from simulator.site import NAMESPACE

SCHEDULING = {"backend": "kueue", "queue": kueue.QUEUE, "topologyLevels": ["rack"]}
SECONDS = 600
"""Many times what anything takes."""


@dataclass(kw_only=True)
class Tenant(RealWorld):
    """A job of three trainers with 8 GPUs each and two rollouts with one."""

    plane: ControlPlane | None = None

    async def prepare(self) -> None:
        assert self.plane
        self.plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        kueue.open_queue(self.plane, self.namespace)

    async def submit(self, **changes: Any) -> None:
        trainer = {"device": "gpu", "nodes": 3, "processesPerNode": 8}
        train = {"steps": 10**6, "promptsPerStep": 24}
        gang: dict[str, Any] = {"trainer": trainer, "rollout": {"replicas": 2}, "scheduling": SCHEDULING}
        await super().submit(**gang | {"train": train} | changes)

    async def turn(self) -> None:
        self.now = time.time()
        await self._pull()
        self._boot()
        self._run()
        await self._push_reports()
        await asyncio.sleep(TURN)

    async def _pull(self) -> None:
        """Launchers live in pods that run."""
        await super()._pull()
        for pod in self.cluster.pods(NAMESPACE):
            if pod["status"].get("phase") != "Running":
                self.cluster.remove(pod)

    async def pods(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in (await self._api.listing("Pod", self.namespace)).objects}

    def workload(self) -> Object:
        assert self.plane
        (found,) = kueue.workloads(self.plane, self.namespace)
        return found

    async def end(self) -> None:
        """Nothing of it is left."""
        with suppress(NotFound):
            await self.remove_child("RLJob", "demo")
        async with asyncio.timeout(SECONDS):
            while await self.pods():  # noqa: ASYNC110
                await asyncio.sleep(TURN)
        await self._api.close()


@asynccontextmanager
async def tenant(plane: ControlPlane, namespace: str) -> AsyncIterator[Tenant]:
    """Its launchers go on by themselves, whoever is waited for."""
    world = Tenant(api=administrator(plane), namespace=namespace, plane=plane, save_every=1000)
    await world.prepare()
    await world.submit()
    await world.turn()
    try:
        async with asyncio.TaskGroup() as group:
            turning = group.create_task(turn_for_ever(world))
            yield world
            turning.cancel()
    finally:
        await world.end()


async def turn_for_ever(world: Tenant) -> None:
    while True:
        await world.turn()


async def until(world: Tenant, state: str, attempt: int = 0) -> None:
    """Its status says so."""
    try:
        async with asyncio.timeout(SECONDS):
            while not world.has_reached(state, attempt=attempt):  # noqa: ASYNC110
                await asyncio.sleep(TURN)
    except TimeoutError:
        raise AssertionError(f"never {state}: {world.status}") from None
