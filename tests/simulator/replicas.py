"""Jobs whose servers are of several pods."""

from typing import Any

from rljob_api.server_group import ServerGroup
from simulator.parts import Part
from simulator.world import NAMESPACE, World

BACKENDS = ["none", "builtin"]


def servers(replicas: int = 2, nodes: int = 2, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "nodes": nodes, "tensorParallel": nodes, "sampling": {"maxTokens": 8}} | more


def groups(world: World) -> dict[str, ServerGroup]:
    assert world.control
    return {group.name: group for group in world.control.servers}


def rollouts(world: World) -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith("demo-rollout-")}


def heads(world: World) -> list[str]:
    assert world.control
    return [endpoint.pod for endpoint in world.control.rollouts]


def part(world: World, ordinal: int) -> Part:
    return world.parts[world.cluster.objects[("Pod", NAMESPACE, f"demo-rollout-{ordinal}")]["metadata"]["uid"]]


async def turns(world: World, count: int) -> None:
    for _ in range(count):
        await world.turn()


async def serving(backend: str = "builtin", **rollout: Any) -> World:
    world = World(steps=10**6)
    world.apply(rollout=servers(**rollout), scheduling={"backend": backend})
    await world.until(state="Running", step=3)
    await turns(world, 6)
    return world
