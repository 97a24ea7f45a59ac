"""A PodGroup is no kind of every cluster, so nobody watches it: what is known of one may be long past."""

from rljob_operator.kube.api import Object
from simulator.site import NAMESPACE
from simulator.world import World

KIND = "PodGroup.scheduling.volcano.sh"
GROUP = (KIND, NAMESPACE, "demo-gang")
VOLCANO = {"scheduling": {"backend": "volcano", "queue": "team"}}


def collect_garbage(world: World) -> None:
    """What owner references do when the job is gone."""
    uid = world.job["metadata"]["uid"]
    objects: list[Object] = list(world.cluster.objects.values())
    for obj in objects:
        if uid in (obj["metadata"]["uid"], *(o["uid"] for o in obj["metadata"].get("ownerReferences", []))):
            world.cluster.remove(obj)


async def test_a_job_of_the_same_name_gets_a_gang_of_its_own() -> None:
    world = World(steps=4)
    world.apply(**VOLCANO)
    await world.until(state="Running")
    before = world.cluster.objects[GROUP]["metadata"]["uid"]
    collect_garbage(world)
    world.apply(**VOLCANO)
    await world.until(state="Running")
    assert world.cluster.objects[GROUP]["metadata"]["uid"] != before


async def test_nothing_is_kept_of_the_gang_of_a_job_that_is_gone() -> None:
    world = World(steps=4)
    world.apply(**VOLCANO)
    await world.until(state="Running")
    collect_garbage(world)
    world.feed.deliver()
    await world.pass_over("demo")
    assert len(world.feed.cache.children[KIND]) == 0


async def test_a_finished_job_gives_its_gang_up_and_gets_another_when_it_goes_on() -> None:
    world = World(steps=4)
    world.apply(**VOLCANO, lifecycle={"ttlSecondsAfterFinished": 0})
    await world.until(state="Succeeded")
    for _ in range(5):
        await world.turn()
    assert GROUP not in world.cluster.objects
    assert world.cluster.writes.count("delete PodGroup demo-gang") == 1
    world.request("n1", "resume", from_step=2)
    await world.until(state="Running", attempt=2)
    assert GROUP in world.cluster.objects
