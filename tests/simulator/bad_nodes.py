"""Jobs on nodes of which some are bad."""

from typing import Any

from rljob_api.status_parts import NodeStatus
from rljob_operator.kube.api import Object
from simulator.objects import node_object
from simulator.world import NAMESPACE, World

FOUR = ("n1", "n2", "n3", "n4")
"""One for each pod of the job, and one to spare."""
CORDON: Object = {"spec": {"unschedulable": True}}
TAINT: Object = {"spec": {"taints": [{"key": "nvidia.com/gpu-xid-error", "value": "true", "effect": "NoSchedule"}]}}


def on_nodes(world: World, *nodes: str, backend: str = "builtin", **changes: Any) -> World:
    """Nodes for one pod each."""
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    for name in nodes:
        world.cluster.put(node_object(True, name=name, pods=1))
    scheduling = {"backend": backend} | changes.pop("scheduling", {})
    lifecycle = {"backoffSeconds": 1, "maxRestarts": 3} | changes.pop("lifecycle", {})
    world.apply(scheduling=scheduling, lifecycle=lifecycle, **changes)
    return world


def node_of(world: World, pod: str) -> str:
    return str(world.cluster.objects["Pod", NAMESPACE, pod]["spec"]["nodeName"])


def places(world: World) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in world.cluster.pods(NAMESPACE) if pod["spec"].get("nodeName")}


def edit_node(world: World, name: str, **changes: Any) -> None:
    node = world.cluster.edit("Node", None, name)
    node.setdefault("spec", {}).update(changes.get("spec", {}))
    node["status"]["conditions"] += changes.get("conditions", [])


def the_node(world: World, name: str) -> NodeStatus | None:
    return next((entry for entry in world.status.nodes if entry.node == name), None)


def condition(world: World) -> tuple[str, str, str]:
    found = next(c for c in world.status.conditions if c.type == "NodesSound")
    return found.status, found.reason, found.message


async def kill_on(world: World, node: str, attempt: int) -> None:
    """The rank of the trainer on this node, when that attempt runs."""
    await world.until(state="Running", attempt=attempt)
    for ordinal in range(2):
        if node_of(world, f"demo-trainer-{ordinal}") == node:
            world.launcher(ordinal).fail("killed", "Signal 9 (SIGKILL)", world.now)
