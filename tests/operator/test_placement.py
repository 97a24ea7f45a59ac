"""Gangs on nodes, against a cluster in memory: together or not at all, in turn, and again elsewhere when a node fails them."""

from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from rljob_api import names, reasons
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.policy import JobPolicy
from rljob_operator.model.scheduling import SchedulingRequest, SchedulingResult
from rljob_operator.policies.placement import EXCLUDED_SECONDS, UNBOUND_SECONDS
from rljob_operator.schedulers.builtin import scheduler
from rljob_operator.schedulers.builtin.cycle import schedule_pending
from rljob_placement.cluster import Cluster
from simulator.crowd import NAMESPACE, Crowd
from simulator.feed import HOSTILE, PROMPT, Faults
from simulator.life import end, kill_after_writes, live
from simulator.objects import node_object
from simulator.world import World

BUILTIN = {"scheduling": {"backend": "builtin"}}


async def test_a_gang_gets_its_seats_before_any_pod_is_released() -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("demo", trainers=2)
    await crowd.turns(4)
    assert len(crowd.on_nodes("demo")) == 3
    status = crowd.status("demo")
    assert status.placement and {x.pod: x.node for x in status.placement.assignments} == crowd.on_nodes("demo")
    assert sorted(x.rank for x in status.placement.assignments if x.rank is not None) == [0, 1]
    assert len(set(crowd.on_nodes("demo").values())) == 2, "two trainers sit together, the rollout next to them"
    released = next(i for i, w in enumerate(crowd.cluster.writes) if w.startswith("patch Pod"))
    seated = next(i for i, w in enumerate(crowd.cluster.writes) if w == "replace RLJob demo")
    assert seated < released
    assert sum(w.startswith("patch Pod") for w in crowd.cluster.writes) == 3, "each pod is patched once"


async def test_jobs_that_compete_are_placed_whole_one_after_the_other() -> None:
    """Three jobs of three pods on five places: whoever is first, no two of them wait with a half each."""
    for seed in range(10):
        crowd = Crowd({"a": 3, "b": 2}, random=Random(seed))
        for name in ("one", "two", "three"):
            crowd.apply(name, trainers=2)
        await crowd.turns(6)
        assert [len(crowd.on_nodes(job)) for job in ("one", "two", "three")] == [3, 0, 0], f"the oldest, seed {seed}"
        assert crowd.status("two").message.startswith("waiting for capacity: needs capacity for 2 trainer pods with ")
        assert crowd.status("two").message.endswith("; the cluster has it for 2 or for 2, not for both at once")
        crowd.delete("one")
        await crowd.turns(6)
        assert [len(crowd.on_nodes(job)) for job in ("two", "three")] == [3, 0]


async def test_a_job_whose_status_cannot_be_read_keeps_no_other_from_its_nodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another release may have written it, or whoever may write any status."""
    crowd = Crowd({"a": 6})
    crowd.apply("broken", trainers=2)
    await crowd.turns(3)
    crowd.cluster.edit(names.KIND, NAMESPACE, "broken")["status"]["attempt"] = {}
    crowd.apply("sound", trainers=2)
    for _ in range(4):
        await crowd.turn(["sound"])
    assert len(crowd.on_nodes("sound")) == 3
    with pytest.raises(ValidationError):
        await crowd.turn(["broken"])
    assert caplog.text.count("the status of research/broken cannot be read: attempt.number") == 1, "once per version"


async def test_priority_comes_before_age() -> None:
    for seed in range(10):
        crowd = Crowd({"a": 3}, random=Random(seed))
        crowd.apply("old", trainers=2)
        crowd.apply("urgent", trainers=2, priority=5)
        await crowd.turns(5)
        assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("urgent"))) == (0, 3)


async def test_a_job_that_fits_does_not_wait_for_an_older_one_that_does_not() -> None:
    crowd = Crowd({"a": 3})
    crowd.apply("large", trainers=5)
    crowd.apply("small", trainers=2)
    await crowd.turns(5)
    assert len(crowd.on_nodes("small")) == 3
    conditions = {c.type: c for c in crowd.status("large").conditions}
    assert conditions["Placed"].reason == reasons.UNPLACEABLE
    assert conditions["Placed"].message.startswith("needs capacity for 5 trainer pods with ")


@pytest.mark.parametrize("seed", range(6))
async def test_a_crowd_is_served_whatever_the_watches_lose_and_whenever_the_operator_dies(seed: int) -> None:
    crowd = Crowd({"a": 4, "b": 4, "c": 4}, faults=HOSTILE, random=Random(seed))
    waiting = [f"job-{i}" for i in range(5)]
    for i, name in enumerate(waiting):
        crowd.apply(name, trainers=1 + i % 3, rollouts=2)
    for _ in range(12):
        crowd.cluster.crash_after = len(crowd.cluster.writes) + crowd.random.randint(1, 20)
        await crowd.turns(12)
        done = [job for job in waiting if len(crowd.on_nodes(job)) > int(job[-1]) % 3 + 1]
        for job in done[:1]:
            crowd.delete(job)
            waiting.remove(job)
    assert waiting == []
    assert crowd.crashes


@pytest.mark.parametrize(("seed", "faults"), [*((i, PROMPT) for i in range(4)), *((i, HOSTILE) for i in range(4))])
async def test_no_node_is_given_twice_while_nodes_are_drained_and_pods_linger(seed: int, faults: Faults) -> None:
    """Nor, as far as the operator can see, does a gang wait with a part of its nodes."""
    crowd = Crowd({"a": 3, "b": 3, "c": 3}, faults=faults, random=Random(seed))
    for i in range(4):
        crowd.apply(f"job-{i}", trainers=2)
    for _ in range(10):
        crowd.lingering = crowd.random.random() < 0.7
        node = crowd.random.choice("abc")
        crowd.drain(node)
        for _ in range(crowd.random.randint(2, 8)):
            await crowd.turn()
            crowd.check() if faults is PROMPT else crowd.check_capacity()
        crowd.uncordon(node)
    crowd.lingering = False
    for _ in range(30):
        await crowd.turn()
    assert sum(len(crowd.on_nodes(f"job-{i}")) for i in range(4)) == 9


async def test_a_crowd_is_planned_once_and_not_once_for_each_of_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those who find no capacity, until some becomes free."""
    planned: list[int] = []

    def counted(
        cluster: Cluster, waiting: list[SchedulingRequest], *more: Any
    ) -> tuple[list[SchedulingResult], Cluster]:
        planned.append(len(waiting))
        return schedule_pending(cluster, waiting, *more)

    monkeypatch.setattr(scheduler, "schedule_pending", counted)
    crowd = Crowd({f"n{i}": 6 for i in range(10)})
    for i in range(30):
        crowd.apply(f"job-{i}", trainers=2)
    await crowd.turns(4)
    assert sum(len(crowd.on_nodes(f"job-{i}")) == 3 for i in range(30)) == 20
    assert planned == [30]
    crowd.delete("job-0")
    await crowd.turns(3)
    assert len(crowd.on_nodes("job-20")) == 3
    assert planned == [30, 10]


async def test_seats_that_nobody_fetches_are_given_to_others() -> None:
    crowd = Crowd({"a": 3})
    crowd.apply("first", trainers=2)
    crowd.apply("second", trainers=2)
    await crowd.turn(order=["second"])
    assert crowd.status("second").message.startswith("waiting for capacity")
    crowd.delete("first")
    crowd.feed.deliver()
    await crowd.pass_over("first")
    await crowd.turns(3)
    assert len(crowd.on_nodes("second")) == 3


async def test_a_node_that_does_not_take_its_pod_is_left_alone_and_the_others_stay() -> None:
    crowd = Crowd({"a": 2, "b": 2, "c": 2})
    crowd.cluster.full.add("b")
    crowd.apply("demo", trainers=3)
    await crowd.turns(5)
    kept = crowd.on_nodes("demo")
    assert len(kept) == 2
    await crowd.turns(int(UNBOUND_SECONDS) + 5)
    assert kept.items() <= crowd.on_nodes("demo").items()
    assert len(crowd.on_nodes("demo")) == 4
    placement = crowd.status("demo").placement
    assert placement and [e.node for e in placement.excluded] == ["b"]
    crowd.cluster.full.clear()
    crowd.elapse(EXCLUDED_SECONDS)
    await crowd.turns(2)
    placement = crowd.status("demo").placement
    assert placement and placement.excluded == []


async def test_the_only_node_is_tried_again() -> None:
    crowd = Crowd({"a": 4})
    crowd.cluster.full.add("a")
    crowd.apply("demo", trainers=2)
    await crowd.turns(int(UNBOUND_SECONDS) + 6)
    crowd.cluster.full.clear()
    await crowd.turns(4)
    assert len(crowd.on_nodes("demo")) == 3


async def test_a_pod_of_a_dead_node_gets_another_and_the_others_stay() -> None:
    crowd = Crowd({"a": 2, "b": 2, "c": 2})
    crowd.apply("demo", trainers=3)
    await crowd.turns(5)
    before = crowd.on_nodes("demo")
    dead = before["demo-trainer-0"]
    crowd.cluster.remove(crowd.cluster.objects[("Node", None, dead)])
    for pod, node in before.items():
        if node == dead:
            crowd.cluster.remove(crowd.cluster.objects[("Pod", NAMESPACE, pod)])
    del crowd.nodes[dead]
    await crowd.turns(6)
    after = crowd.on_nodes("demo")
    assert len(after) == 4
    assert dead not in after.values()
    assert {pod: node for pod, node in before.items() if node != dead}.items() <= after.items()


async def test_a_cordoned_node_that_jobs_need_not_leave_keeps_its_pods_and_gets_no_new_ones() -> None:
    crowd = Crowd(nodes={"a": 2, "b": 2, "c": 2}, policy=JobPolicy(leave_nodes=LeaveNodes(cordoned=False)))
    crowd.apply("demo", trainers=2)
    await crowd.turns(4)
    cordoned = crowd.on_nodes("demo")["demo-trainer-1"]
    node = crowd.cluster.objects[("Node", None, cordoned)]
    crowd.cluster.touch(node)
    node["spec"] = {"unschedulable": True}
    crowd.cluster.remove(crowd.cluster.objects[("Pod", NAMESPACE, "demo-trainer-1")])
    await crowd.turns(5)
    assert crowd.on_nodes("demo")["demo-trainer-1"] != cordoned
    assert crowd.on_nodes("demo")["demo-trainer-0"] == cordoned, "it was there and stays"


async def test_a_node_that_is_assigned_to_pods_still_ending_elsewhere_goes_to_nobody_else() -> None:
    """A drained job is assigned the other node while its pods use their grace period. A younger job that waits does not get it."""
    crowd = Crowd({"a": 3, "b": 3})
    crowd.apply("old", trainers=2)
    await crowd.turns(4)
    drained = set(crowd.on_nodes("old").values())
    other = ({"a", "b"} - drained).pop()
    crowd.lingering = True
    crowd.drain(drained.pop())
    await crowd.turns(2)
    placement = crowd.status("old").placement
    assert placement and {seat.node for seat in placement.assignments} == {other}
    crowd.apply("young", trainers=2)
    await crowd.turns(4)
    assert crowd.status("young").message.startswith("waiting for capacity")
    assert crowd.on_nodes("young") == {}
    crowd.lingering = False
    await crowd.turns(4)
    assert set(crowd.on_nodes("old").values()) == {other}
    assert len(crowd.on_nodes("old")) == 3
    assert crowd.on_nodes("young") == {}


async def test_a_drained_job_that_waits_is_served_before_a_younger_one() -> None:
    for seed in range(10):
        crowd = Crowd({"a": 3}, random=Random(seed))
        crowd.apply("old", trainers=2)
        await crowd.turns(4)
        crowd.apply("young", trainers=2)
        crowd.lingering = True
        crowd.drain("a")
        await crowd.turns(2)
        crowd.nodes["b"] = 3
        crowd.cluster.put(node_object(True, name="b", pods=3))
        await crowd.turns(2)
        crowd.lingering = False
        await crowd.turns(4)
        assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("young"))) == (3, 0), f"seed {seed}"


async def test_a_pod_that_ends_where_its_successor_will_be_counts_once() -> None:
    """The name is free for the successor only when the old pod is gone, so both never use the node together."""
    crowd = Crowd({"a": 6})
    crowd.apply("old", trainers=2)
    await crowd.turns(4)
    crowd.lingering = True
    crowd.cluster.edit("Pod", NAMESPACE, "old-trainer-1")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await crowd.turns(2)
    crowd.apply("young", trainers=2)
    await crowd.turns(4)
    assert len(crowd.on_nodes("young")) == 3


async def test_further_rollouts_come_when_there_is_capacity() -> None:
    crowd = Crowd({"a": 3})
    crowd.apply("demo", trainers=2, rollouts=3)
    await crowd.turns(4)
    assert len(crowd.on_nodes("demo")) == 3
    placement = crowd.status("demo").placement
    assert placement and placement.report.rollouts == ["a", "", ""]
    crowd.nodes["b"] = 4
    crowd.cluster.put(node_object(True, name="b", pods=4))
    await crowd.turns(4)
    assert len(crowd.on_nodes("demo")) == 5


async def test_a_running_job_keeps_its_nodes_when_its_spec_says_what_a_request_has_said_before() -> None:
    """It was made suspended and resumed by a request, and its attempt was published so. Then GitOps resumes it, too."""
    world = World(steps=10**6)
    world.apply(suspend=True, scheduling={"backend": "builtin"})
    await world.until(state="Suspended")
    world.request("n1", "resume")
    await world.until(state="Running")
    world.edit_spec(suspend=False)
    await world.turn()
    placement = world.status.placement
    assert placement and len(placement.assignments) == 3
    before = world.cluster.objects["Pod", NAMESPACE, "demo-rollout-0"]["metadata"]["uid"]
    world.delete_pod("demo-rollout-0")
    for _ in range(20):
        await world.turn()
    pod = world.cluster.objects["Pod", NAMESPACE, "demo-rollout-0"]
    assert pod["metadata"]["uid"] != before and pod["spec"]["nodeName"], "its successor gets a node"
    assert world.status.attempt and world.status.attempt.number == 1


async def test_a_suspended_job_gives_its_seats_back() -> None:
    crowd = Crowd({"a": 3})
    crowd.apply("demo", trainers=2, suspend=True)
    crowd.apply("other", trainers=2)
    await crowd.turns(5)
    assert crowd.status("demo").placement is None
    assert len(crowd.on_nodes("other")) == 3


async def test_pods_of_other_schedulers_are_respected() -> None:
    crowd = Crowd({"a": 3, "b": 3})
    stranger = {"name": "stranger", "namespace": "elsewhere", "labels": {}}
    crowd.cluster.put({"kind": "Pod", "metadata": stranger, "spec": {"nodeName": "a", "containers": []}})
    crowd.apply("demo", trainers=2)
    await crowd.turns(4)
    assert set(crowd.on_nodes("demo").values()) == {"b"}
    assert names.GATE not in str(crowd.cluster.objects[("Pod", NAMESPACE, "demo-trainer-0")]["spec"]["schedulingGates"])


@pytest.mark.slow
async def test_an_operator_killed_after_every_other_write_of_a_placed_job_changes_nothing() -> None:
    """Every pod goes through its gate, each time."""

    async def placed(world: World) -> tuple[object, ...]:
        ended = end(await live(world, **BUILTIN))
        return (*ended[:3], world.status.placement, *ended[3:])

    ended = await kill_after_writes(2, placed)
    assert isinstance(ended, tuple) and ended[:4] == ("Succeeded", 4, 2, None)
