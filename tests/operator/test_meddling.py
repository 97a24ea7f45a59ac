"""What careless or hostile hands do to a job's objects while it runs, once. The job ends well all the same."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_api import names
from rljob_api.status import JobStatus
from rljob_operator.kube.api import Object
from rljob_operator.policies.decide import decide
from rljob_operator.render.channel import control_message
from simulator.controllers import owner_of
from simulator.makers import make_job
from simulator.objects import job_object, node_object
from simulator.site import NAMESPACE
from simulator.world import World

Meddle = Callable[[World], None]
POD = "demo-trainer-1"
WEEK = 7 * 86400.0


def scale_to_none(world: World) -> None:
    world.cluster.edit("StatefulSet", NAMESPACE, "demo-trainer")["spec"]["replicas"] = 0


def scale_to_many(world: World) -> None:
    world.cluster.edit("StatefulSet", NAMESPACE, "demo-trainer")["spec"]["replicas"] = 7


def orphan_the_pods(world: World) -> None:
    """`kubectl delete statefulset --cascade=orphan`"""
    old = world.cluster.objects["StatefulSet", NAMESPACE, "demo-trainer"]
    for pod in world.cluster.pods(NAMESPACE):
        if owner_of(pod) == old["metadata"]["uid"]:
            del world.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])["metadata"]["ownerReferences"]
    world.cluster.remove(old)


def delete_the_set(world: World) -> None:
    world.cluster.remove(world.cluster.objects["StatefulSet", NAMESPACE, "demo-trainer"])


def make_all_immutable(world: World) -> None:
    for kind, namespace, name in list(world.cluster.objects):
        if kind in ("ConfigMap", "Secret") and namespace == NAMESPACE:
            world.cluster.edit(kind, namespace, name)["immutable"] = True


def replace_the_node(world: World) -> None:
    """Its object, by one of the same name, as a node does that registers anew."""
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    world.cluster.put(node_object(True))


def change_the_template(world: World) -> None:
    template = world.cluster.edit("StatefulSet", NAMESPACE, "demo-trainer")["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "example.com/other"


def empty_the_role(world: World) -> None:
    for kind, namespace, name in list(world.cluster.objects):
        if kind == "Role" and namespace == NAMESPACE:
            world.cluster.edit(kind, namespace, name)["rules"] = []


def wipe_the_status(world: World) -> None:
    """As a backup does that restores objects without their status."""
    world.cluster.edit("RLJob", NAMESPACE, "demo").pop("status")


def garble_the_control(world: World) -> None:
    world.cluster.edit("ConfigMap", NAMESPACE, "demo-control")["data"] = {names.CONTROL_KEY: "{", "other": "x" * 10_000}


def delete_the_control(world: World) -> None:
    world.cluster.remove(world.cluster.objects["ConfigMap", NAMESPACE, "demo-control"])


def delete_the_reports(world: World) -> None:
    for kind, namespace, name in list(world.cluster.objects):
        if kind == "ConfigMap" and name != "demo-control":
            world.cluster.remove(world.cluster.objects[kind, namespace, name])


def clock_ahead(world: World) -> None:
    world.now += WEEK


def clock_back(world: World) -> None:
    world.now -= WEEK


def relabel_a_pod(world: World) -> None:
    """So that it seems to be of another job, and its StatefulSet lets it go."""
    meta = world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]
    meta["labels"] |= {names.LABEL_JOB: "other"}


def finalize_the_job(world: World) -> None:
    world.cluster.edit("RLJob", NAMESPACE, "demo")["metadata"]["finalizers"] = ["example.com/keep"]


def annotate_without_end(world: World) -> None:
    notes = {f"example.com/{i}": "x" * 1000 for i in range(250)}
    world.cluster.edit("RLJob", NAMESPACE, "demo")["metadata"]["annotations"] |= notes
    world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["annotations"] |= notes


def shut_the_node_off(world: World) -> None:
    """A node with no capacity left by what it says, and of amounts that are none."""
    world.cluster.edit("Node", None, "node-1")["status"]["allocatable"] = {"cpu": "-1", "memory": "1e400", "pods": ""}


MEDDLING: tuple[Meddle, ...] = (
    scale_to_none,
    scale_to_many,
    orphan_the_pods,
    delete_the_set,
    make_all_immutable,
    replace_the_node,
    change_the_template,
    empty_the_role,
    wipe_the_status,
    garble_the_control,
    delete_the_control,
    delete_the_reports,
    clock_ahead,
    clock_back,
    relabel_a_pod,
    finalize_the_job,
    annotate_without_end,
    shut_the_node_off,
)


async def ended(world: World) -> World:
    for _ in range(200):
        await world.turn()
        if world.status.outcome:
            break
    assert world.status.outcome == "Succeeded", f"{world.status.state}: {world.status.message}"
    return world


@pytest.mark.parametrize("meddle", MEDDLING, ids=lambda meddle: meddle.__name__)
async def test_whatever_hands_do_to_its_objects_a_job_ends_well(meddle: Meddle) -> None:
    world = World(steps=40)
    world.apply(lifecycle={"backoffSeconds": 1})
    await world.until(state="Running", step=9)
    meddle(world)
    await ended(world)
    assert world.status.restarts.counted == 0
    assert world.status.lost_steps <= world.save_every * world.status.restarts.total


@pytest.mark.parametrize("meddle", [orphan_the_pods, replace_the_node], ids=lambda meddle: meddle.__name__)
async def test_an_attempt_survives_what_leaves_its_pods_alone(meddle: Meddle) -> None:
    world = World(steps=40)
    world.apply()
    await world.until(state="Running", step=9)
    before = {pod["metadata"]["uid"] for pod in world.cluster.pods(NAMESPACE)}
    meddle(world)
    await ended(world)
    assert world.status.attempt and world.status.attempt.number == 1
    assert {pod["metadata"]["uid"] for pod in world.cluster.pods(NAMESPACE)} <= before


@pytest.mark.parametrize("backend", ["builtin", "none"])
@pytest.mark.parametrize("turns", [1, 5, 60])
async def test_a_node_whose_object_is_away_for_a_while_is_used_again(turns: int, backend: str) -> None:
    """Without it, its pods are deleted by force, since nothing runs them as far as the cluster knows; and none is placed there."""
    world = World(steps=40)
    world.apply(scheduling={"backend": backend})
    await world.until(state="Running", step=9)
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    for _ in range(turns):
        await world.turn()
    writes = len(world.cluster.writes)
    for _ in range(30 if turns == 60 else 0):
        await world.turn()
    assert len(world.cluster.writes) - writes <= 5, "a loop"
    world.cluster.put(node_object(True))
    await ended(world)
    assert (world.status.restarts.counted, world.status.nodes) == (0, world.status.nodes)
    assert world.status.attempt and world.status.attempt.number <= 2


async def test_attempts_are_numbered_on_when_the_status_is_lost() -> None:
    """Launchers begin no attempt with a number that they have seen, and checkpoints belong to the highest."""
    world = World(steps=100)
    world.apply(lifecycle={"backoffSeconds": 1})
    for attempt in (1, 2, 3):
        await world.until(state="Running", attempt=attempt, step=3)
        world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=4, step=9)
    wipe_the_status(world)
    await ended(world)
    assert world.status.attempt and world.status.attempt.number == 4, "nobody has noticed"
    assert (world.status.restarts.total, world.status.lost_steps) == (0, 0)


async def test_a_status_that_is_lost_between_two_attempts_is_followed_by_the_next_number() -> None:
    world = World(steps=100)
    world.apply(lifecycle={"backoffSeconds": 20})
    await world.until(state="Running", step=9)
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Restarting")
    for _ in range(3):
        await world.turn()
    assert world.status.attempt and world.status.attempt.ended_at
    wipe_the_status(world)
    await ended(world)
    assert world.status.attempt and world.status.attempt.number == 2


def test_a_number_that_no_operator_wrote_is_not_believed() -> None:
    s = make_job().with_attempt().running(step=5).snapshot()
    assert s.spec
    written = control_message(s, s.status, s.spec)
    for number, believed in ((7, True), (10**18, False)):
        control = written.model_copy(update={"attempt": number})
        attempt = decide(replace(s, control=control, status=JobStatus())).status.attempt
        assert (attempt is not None and attempt.number == number) == believed


async def test_a_job_that_is_deleted_and_applied_again_before_its_children_are_gone_waits_for_their_end() -> None:
    world = World(steps=20)
    world.apply()
    await world.until(state="Running", step=9)
    old, spec = world.job["metadata"]["uid"], world.job["spec"]
    world.cluster.remove(world.job)
    world.cluster.put(job_object("demo", spec))
    world.checkpoints.clear()  # of another lineage
    for _ in range(5):
        await world.turn()
    assert world.status.attempt is None and "is not controlled by this job" in world.status.message
    children = [o for o in world.cluster.objects.values() if _is_owned(o, old)]
    assert len(children) > 5
    for obj in [*children, *world.cluster.pods(NAMESPACE)]:
        world.cluster.remove(obj)
    await ended(world)
    assert world.status.attempt and world.status.attempt.number == 1


def _is_owned(obj: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or [])
