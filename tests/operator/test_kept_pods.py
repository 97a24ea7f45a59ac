"""Pods of a job that was deleted, which Kueue's finalizer keeps after their end: nobody else would let them go, and they would keep their quota."""

import pytest

from rljob_api import names
from rljob_operator.kube.api import ApiError, Object
from simulator.site import NAMESPACE
from simulator.world import World

FINALIZER = "kueue.x-k8s.io/managed"
KEY = (NAMESPACE, "demo")


async def deleted(*finalizers: str, foreground: bool = False, bound: bool = True) -> World:
    """A job is deleted, and the garbage collector has got to its pods, which have these finalizers. `foreground`: the job stays until they are gone;
    `bound`: whether they run."""
    world = World()
    if not bound:
        world.cluster.full.add("node-1")
    world.apply(scheduling={"backend": "none"})
    while len(pods(world)) < 3 or (bound and world.status.state != "Running"):
        await world.turn()
    for pod in pods(world):
        pod["metadata"]["finalizers"] = [*finalizers]
        world.delete_pod(pod["metadata"]["name"])
    for obj in [obj for obj in world.cluster.objects.values() if obj["kind"] not in ("Pod", "Node", names.KIND)]:
        world.cluster.remove(obj)
    if foreground:
        world.cluster.edit(names.KIND, *KEY)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    else:
        world.cluster.remove(world.job)
    return world


def pods(world: World) -> list[Object]:
    return world.cluster.pods(NAMESPACE)


def end(world: World, pod: Object) -> None:
    """As its kubelet does."""
    name = pod["metadata"]["name"]
    world.cluster.edit("Pod", NAMESPACE, name)["status"] |= {"phase": "Failed", "containerStatuses": []}


async def act(world: World) -> None:
    """The operator does what it is asked for."""
    for _ in range(3):
        world.elapse(1)
        world.feed.deliver()
        await world.pass_over("demo")


@pytest.mark.parametrize("foreground", [False, True])
async def test_each_pod_of_a_deleted_job_is_let_go_as_soon_as_it_has_ended(foreground: bool) -> None:
    world = await deleted(FINALIZER, foreground=foreground)
    await act(world)
    first, *others = pods(world)
    assert len(others) == 2, "their containers run"
    end(world, first)
    await act(world)
    assert pods(world) == others
    for pod in others:
        end(world, pod)
    await act(world)
    assert pods(world) == [] and world.operator._cache.pods.of(KEY) == {}


async def test_pods_that_never_had_a_node_are_let_go_at_once() -> None:
    world = await deleted(FINALIZER, bound=False)
    await act(world)
    assert pods(world) == []


async def test_pods_that_ended_while_nobody_acted_are_let_go_by_the_next_operator() -> None:
    world = await deleted(FINALIZER)
    for pod in pods(world):
        end(world, pod)
    world.restart_operator()
    await act(world)
    assert pods(world) == []


async def test_the_finalizers_of_others_stay() -> None:
    world = await deleted("example.com/a", FINALIZER, "example.com/b")
    for pod in pods(world):
        end(world, pod)
    await act(world)
    assert [pod["metadata"]["finalizers"] for pod in pods(world)] == [["example.com/a", "example.com/b"]] * 3


async def test_what_is_refused_is_tried_again_and_holds_nobody_else() -> None:
    world = await deleted(FINALIZER)
    first, *_ = pods(world)
    for pod in pods(world):
        end(world, pod)
    kept = first["metadata"]["name"]
    world.cluster.refuses = lambda verb, obj: ApiError(403, "no") if obj["metadata"]["name"] == kept else None
    await act(world)
    assert pods(world) == [first]
    world.cluster.refuses = lambda verb, obj: None
    await act(world)
    assert pods(world) == []


async def test_a_pod_that_nobody_deleted_is_not_let_go_when_it_ends() -> None:
    world = await deleted(FINALIZER)
    for pod in pods(world):
        del pod["metadata"]["deletionTimestamp"]
        end(world, pod)
    await act(world)
    assert len(pods(world)) == 3
