"""Pods that the StatefulSet's controller cannot create: the job says why."""

from typing import Any

import pytest

from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Object
from rljob_operator.model.pod_events import INTERVAL, PATIENCE
from rljob_operator.model.refused_pods import dispensable_pods
from rljob_operator.times import stamp
from simulator import controllers
from simulator.cluster import FakeCluster
from simulator.crowd import Crowd
from simulator.makers import make_job
from simulator.site import Site
from simulator.world import NAMESPACE, World

NO_CLASS = 'pods "demo-trainer-0" is forbidden: no PriorityClass with name nope was found'


def refused(world: Site, role: str, why: str, job: str = "demo") -> None:
    """The event of the controller, as it writes it."""
    meta = world.cluster.objects[("StatefulSet", NAMESPACE, f"{job}-{role}")]["metadata"]
    event: Object = {
        "kind": "Event",
        "metadata": {"name": f"{role}-{world.cluster.version}", "namespace": NAMESPACE},
        "involvedObject": {"kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"]},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": f"create Pod {job}-{role}-0 in StatefulSet {job}-{role} failed error: {why}",
        "lastTimestamp": stamp(world.now),
    }
    world.cluster.put(event)


async def without_pods(**changes: Any) -> World:
    """A job whose StatefulSets are there and whose pods are not."""
    world = World(asleep=True)
    world.apply(**changes)
    await world.turn()
    return world


async def test_the_message_says_why_pods_are_not_created() -> None:
    world = await without_pods(trainer={"device": "cpu", "nodes": 2, "template": {"priorityClassName": "nope"}})
    refused(world, "trainer", "exceeded quota: team")
    world.now += 1
    refused(world, "trainer", NO_CLASS)
    for _ in range(int(PATIENCE) + 2):
        await world.turn()
    assert f"demo-trainer-0 does not exist: {NO_CLASS}" in world.status.message
    assert "quota" not in world.status.message, "the newest reason counts"
    world.asleep = False
    await world.until(state="Running")
    assert "does not exist" not in world.status.message


async def test_a_change_of_the_reason_is_seen_without_any_event_of_a_watch() -> None:
    world = await without_pods()
    refused(world, "trainer", "exceeded quota: team")
    for _ in range(int(PATIENCE) + 2):
        await world.turn()
    assert "exceeded quota: team" in world.status.message
    refused(world, "trainer", NO_CLASS)
    for _ in range(int(INTERVAL) + 2):
        await world.turn()
    assert NO_CLASS in world.status.message


def test_servers_that_are_not_created_are_named_while_the_trainer_waits() -> None:
    job = (
        make_job().with_attempt().running(step=0, phase="waiting").having(uncreated={"rollout": "exceeded quota: team"})
    )
    assert job.next().message == "waiting for rollouts, 0/1 answer: rollout pods do not exist: exceeded quota: team"


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rollouts a quota allows, by job. The controller creates no more."""
    limits, start = dict[str, int](), controllers._start_pod

    def within_quota(cluster: FakeCluster, sts: Object, ordinal: int) -> None:
        job, _, role = sts["metadata"]["name"].rpartition("-")
        if role != "rollout" or ordinal < limits.get(job, ordinal + 1):
            start(cluster, sts, ordinal)

    monkeypatch.setattr(controllers, "_start_pod", within_quota)
    return limits


@pytest.mark.parametrize(("quota", "pods"), [(2, 3), (0, 0)])
async def test_a_job_starts_without_rollouts_that_it_can_do_without_and_says_why_others_are_missing(
    quota: int, pods: int, allowed: dict[str, int]
) -> None:
    crowd = Crowd({"a": 2, "b": 2, "c": 2})
    crowd.apply("first", trainers=5)
    await crowd.turns(5)
    allowed["old"] = quota
    crowd.apply("old", trainers=1, rollout={"replicas": 4, "minReplicas": 1, "sampling": {"maxTokens": 8}})
    await crowd.turns(5)
    refused(crowd, "rollout", "exceeded quota: team", "old")
    await crowd.turns(int(INTERVAL) + 5)
    crowd.delete("first")
    await crowd.turns(int(INTERVAL))
    assert len(crowd.on_nodes("old")) == pods
    said = "rollout pods do not exist: exceeded quota: team" in crowd.status("old").message
    assert said == (pods == 0), crowd.status("old").message


async def test_no_node_is_kept_for_pods_that_a_quota_refuses_and_the_gang_can_do_without(
    allowed: dict[str, int],
) -> None:
    crowd = Crowd({"a": 1, "b": 1, "c": 1, "d": 1})
    allowed["old"] = 1
    crowd.apply("old", trainers=1, rollout={"replicas": 3, "minReplicas": 1, "sampling": {"maxTokens": 8}})
    await crowd.turns(10)
    refused(crowd, "rollout", "exceeded quota: team", "old")
    await crowd.turns(int(INTERVAL) + 5)
    assert taken(crowd, "old") == ["old-trainer-0", "old-rollout-0"]
    for name, pods in (("second", 2), ("third", 0)):
        crowd.apply(name, trainers=1)
        await crowd.turn()
        assert not crowd.operator._scheduler._reserved, "the cycle of another plans nothing for it"
        await crowd.turns(9)
        assert (len(crowd.on_nodes(name)), len(taken(crowd, "old"))) == (pods, 2)
    crowd.delete("second")
    crowd.delete("third")
    del allowed["old"]
    await crowd.turns(int(INTERVAL) + 5)
    assert len(crowd.on_nodes("old")) == 4, "the quota was raised"


@pytest.mark.parametrize(
    ("pods", "on_nodes", "without"),
    [
        (4, 0, set[int]()),
        (3, 0, {2, 3}),
        (3, 3, {3}),
        (2, 2, {2, 3}),
        (1, 1, {2, 3}),
    ],
)
def test_a_server_of_which_a_part_is_refused_needs_no_nodes_and_one_that_the_gang_needs_keeps_them(
    pods: int, on_nodes: int, without: set[int]
) -> None:
    """Two servers of two pods, of which the gang needs one."""
    rollout = {"replicas": 2, "minReplicas": 1, "nodes": 2, "tensorParallel": 2, "sampling": {"maxTokens": 8}}
    job = make_job(scheduling={"backend": "builtin"}, rollout=rollout)
    nodes = ["a" if i < on_nodes else "" for i in range(pods)]
    there = [Pod(name=f"demo-rollout-{i}", uid=f"r{i}", role="rollout", ordinal=i, node=n) for i, n in enumerate(nodes)]
    snapshot = job.having(pods=tuple(there), uncreated={"rollout": "exceeded quota: team"}).snapshot()
    assert dispensable_pods(snapshot) == {f"demo-rollout-{i}" for i in without}


def taken(crowd: Crowd, job: str) -> list[str]:
    """Pods with an assignment."""
    placement = crowd.status(job).placement
    return [one.pod for one in placement.assignments] if placement else []


async def test_a_reason_of_a_former_shortage_is_none_of_the_present_one() -> None:
    world = await without_pods()
    refused(world, "trainer", "exceeded quota: team")
    for _ in range(int(PATIENCE) + 2):
        await world.turn()
    assert "exceeded quota: team" in world.status.message
    world.asleep = False
    await world.until(state="Running")
    world.now += 10
    world.enqueue((NAMESPACE, "demo"), 0.0)
    await world.turn()
    world.asleep = True
    world.kill_pod("demo-trainer-0")
    for _ in range(3 * int(INTERVAL)):
        await world.turn()
    assert "demo-trainer-0 does not exist yet" in world.status.message
    refused(world, "trainer", NO_CLASS)
    for _ in range(int(INTERVAL) + 2):
        await world.turn()
    assert f"demo-trainer-0 does not exist: {NO_CLASS}" in world.status.message


async def test_pods_that_come_at_once_cost_no_question() -> None:
    world = World()
    world.apply()
    await world.until(state="Succeeded", turns=60)
    assert world.operator._observer.due((NAMESPACE, "demo"), world.now) is None


async def test_a_job_whose_pods_are_missing_is_asked_about_rarely() -> None:
    world = await without_pods()
    asked = world.cluster.requests
    for _ in range(3 * int(INTERVAL)):
        world.enqueue((NAMESPACE, "demo"), 0.0)
        await world.turn()
    assert world.cluster.requests - asked <= 2 * 4 + 4, "once each 30 s for each of two StatefulSets"
