"""A namespace that is deleted while jobs run in it: nothing new can be made there, and what finalizers keep may stay for long."""

from simulator.crowd import Crowd
from simulator.refusing import ending
from simulator.world import NAMESPACE, World

KEPT = "example.com/keep"


def delete_pods_and_reports(world: World) -> None:
    """As the namespace controller does, which takes kind by kind, and is kept from the jobs by what it cannot discover or delete."""
    for kind, namespace, name in list(world.cluster.objects):
        if namespace == NAMESPACE and kind not in ("RLJob", "Pod", "Event"):
            world.cluster.remove(world.cluster.objects[kind, namespace, name])
    for pod in world.cluster.pods(NAMESPACE):
        world.delete_pod(pod["metadata"]["name"])


async def test_a_job_in_a_namespace_that_ends_says_so_makes_no_loop_and_holds_nothing() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=3)
    world.cluster.refuses = ending(NAMESPACE)
    world.asleep = True
    delete_pods_and_reports(world)
    for _ in range(20):
        await world.turn()
    assert world.cluster.pods(NAMESPACE) == []
    assert "namespace research is being deleted, and the job with it; create it in another" in world.status.message
    assert world.status.restarts.counted == 0
    requests, writes = world.cluster.requests, len(world.cluster.writes)
    for _ in range(600):
        await world.turn()
    assert world.cluster.requests - requests <= 10 * 30, "each object once a minute"
    assert len(world.cluster.writes) - writes <= 10


async def test_nodes_that_a_job_of_an_ending_namespace_would_get_go_to_others() -> None:
    crowd = Crowd({"a": 1, "b": 1})
    crowd.cluster.refuses = ending(NAMESPACE)
    crowd.apply("ends", trainers=1)
    await crowd.turns(5)
    crowd.cluster.refuses = lambda verb, obj: (
        None if obj["metadata"]["name"].startswith("lives") else ending(NAMESPACE)(verb, obj)
    )
    crowd.apply("lives", trainers=1)
    await crowd.turns(10)
    assert (len(crowd.on_nodes("ends")), len(crowd.on_nodes("lives"))) == (0, 2)


async def test_a_job_that_finalizers_keep_is_left_alone_and_its_nodes_are_free_when_its_pods_are_gone() -> None:
    crowd = Crowd({"a": 1, "b": 1})
    crowd.apply("ends", trainers=1)
    await crowd.turns(6)
    assert len(crowd.on_nodes("ends")) == 2
    meta = crowd.cluster.edit("RLJob", NAMESPACE, "ends")["metadata"]
    meta |= {"finalizers": [KEPT], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    crowd.apply("lives", trainers=1)
    for kind, namespace, name in list(crowd.cluster.objects):
        if kind in ("StatefulSet", "Pod") and name.startswith("ends"):
            crowd.cluster.remove(crowd.cluster.objects[kind, namespace, name])
    writes = len(crowd.cluster.writes)
    await crowd.turns(20)
    assert (len(crowd.on_nodes("ends")), len(crowd.on_nodes("lives"))) == (0, 2)
    assert not [w for w in crowd.cluster.writes[writes:] if "ends" in w and "Event" not in w]
