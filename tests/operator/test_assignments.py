"""Parts of placement by themselves: ranks, the patch that releases a pod, and who is next."""

import math
from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status_parts import PlacementStatus, PodAssignment
from rljob_operator.cache.pods import Pod
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.policies.describe import is_display
from rljob_operator.policies.placement import UNBOUND_SECONDS, assign_ranks
from rljob_operator.schedulers.base import operations, pinned
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from rljob_operator.schedulers.builtin.cycle import schedule_pending
from rljob_operator.schedulers.builtin.request import JobView, scheduling_request
from rljob_operator.times import stamp
from rljob_placement.cluster import Cluster, Node
from simulator.makers import META, NOW, Job, make_job
from simulator.world import NAMESPACE, World

LIMITS = LifecycleSpec().model_copy(update={"node_loss_seconds": 300})
NODES = {name: Node(name, free={"pods": 3000}) for name in ("a", "b")}


def placed(**scheduling: Any) -> Job:
    return make_job(nodes=2, scheduling={"backend": "builtin"} | scheduling)


def wish(job: Job, uid: str = "job-uid", **changes: Any) -> SchedulingRequest:
    meta = META.model_copy(update={"uid": uid, "name": uid, "creation_timestamp": changes.pop("created", "")})
    found = scheduling_request(
        JobView(job=meta, spec=job.spec, suspend=False, status=job.status, pods=(), now=NOW, lifecycle=LIMITS),
        NODES.get,
    )
    assert found
    return replace(found, **changes)


def test_who_stays_keeps_his_rank_and_the_others_take_what_is_left() -> None:
    pods = ["t-0", "t-1", "t-2"]
    nodes = ["a", "b", "b"]
    assert assign_ranks(pods, nodes, {}, {}) == {"t-0": 0, "t-1": 1, "t-2": 2}
    assert assign_ranks(pods, nodes, {"t-0": "b", "t-2": "a"}, {"t-0": 2, "t-2": 0}) == {"t-0": 2, "t-1": 1, "t-2": 0}
    assert assign_ranks(pods, nodes, {"t-0": "b"}, {"t-0": 0}) == {"t-0": 1, "t-1": 0, "t-2": 2}, (
        "its node has other ranks now"
    )


def test_the_members_of_an_attempt_have_the_ranks_of_their_seats() -> None:
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="node-1", rank=1 - i) for i in range(2)]
    job = placed().with_status(placement=PlacementStatus(assignments=assigned)).with_pods().reported(state="idle")
    attempt = job.next().attempt
    assert attempt and {m.pod: m.node_rank for m in attempt.members} == {"demo-trainer-0": 1, "demo-trainer-1": 0}


def test_the_release_is_one_patch_of_exactly_this_pod() -> None:
    pod = Pod(name="p", uid="u1", role="trainer", ordinal=0, gates=("other", names.GATE))
    assert operations(pod, "a", NOW) == [
        {"op": "test", "path": "/metadata/uid", "value": "u1"},
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.GATE},
        {"op": "add", "path": "/spec/affinity", "value": pinned({}, "a")},
        {"op": "add", "path": "/metadata/annotations/rljob.dev~1ungated", "value": stamp(NOW)},
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]


def test_a_pin_adds_to_every_term_and_changes_none() -> None:
    """The API server admits only additions to terms that are there, since they are alternatives."""
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    before = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]}},
    }
    after = pinned(before, "a")
    here = [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
    terms = after["nodeAffinity"][required]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [zone], "matchFields": here}, {"matchFields": here}]
    assert after["podAntiAffinity"] == {"x": 1}
    assert before["nodeAffinity"][required]["nodeSelectorTerms"][1] == {}


def test_turns_are_by_urgency_then_priority_then_age() -> None:
    cluster = Cluster((NODES["a"],))
    old = wish(placed(), "old", created="2026-01-01T00:00:00Z")
    young = wish(placed(), "young", created="2026-01-02T00:00:00Z")
    high = wish(placed(priority=9), "high", created="2026-01-03T00:00:00Z")
    calm = wish(placed(priority=99), "calm", urgent=False)
    results, left = schedule_pending(cluster, [young, calm, old, high])
    assert [(v.request.uid, bool(v.plan.problem)) for v in results] == [
        ("high", False),
        ("old", True),
        ("young", True),
        ("calm", True),
    ]
    assert left.nodes[0].free == {"pods": 0}


def test_a_job_asks_for_nothing_when_it_does_not_place_itself() -> None:
    for job in (placed(backend="none"), placed().with_status(suspended=True), placed().with_status(outcome="Failed")):
        assert (
            scheduling_request(
                JobView(job=META, spec=job.spec, suspend=False, status=job.status, pods=(), now=NOW, lifecycle=LIMITS),
                NODES.get,
            )
            is None
        )


def test_a_seat_on_a_node_that_takes_nobody_any_more_is_asked_for_again() -> None:
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="a", rank=i) for i in range(2)]
    job = placed().with_status(
        placement=PlacementStatus(assignments=[*assigned, PodAssignment(pod="demo-rollout-0", node="b")])
    )
    view = JobView(job=META, spec=job.spec, suspend=False, status=job.status, pods=(), now=NOW, lifecycle=LIMITS)
    assert scheduling_request(view, NODES.get) is None
    found = scheduling_request(view, (NODES | {"b": replace(NODES["b"], closed="cordoned")}).get)
    assert found and found.current == {"demo-trainer-0": "a", "demo-trainer-1": "a"}
    assert found.stay.ranks == {0: "a", 1: "a"}, "ranks are planned again only when a trainer moves"


@pytest.mark.parametrize("age", [UNBOUND_SECONDS - 1, UNBOUND_SECONDS])
def test_a_released_pod_has_a_minute_to_get_onto_its_node(age: float) -> None:
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="a", rank=i) for i in range(2)]
    job = placed().with_status(placement=PlacementStatus(assignments=assigned)).with_pods()
    job = job.changing_pod(1, node="", running=False, phase="Pending", ungated_at=NOW - age, unschedulable="0/2 nodes")
    decision = job.decide()
    late = age >= UNBOUND_SECONDS
    assert [p.name for p in decision.delete] == (["demo-trainer-1"] if late else [])
    assert [e.reason for e in decision.events] == ([reasons.NOT_BOUND] if late else [])
    placement = decision.status.placement
    assert placement and [e.node for e in placement.excluded] == (["a"] if late else [])


def test_pods_that_no_node_takes_wait_and_say_once_why() -> None:
    """A claim that does not exist is no node's fault: they were placed again each minute, with an event for each pod."""
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="a", rank=i) for i in range(2)]
    no_claim = '0/3 nodes are available: persistentvolumeclaim "data" not found. not found'
    waiting = {"node": "", "running": False, "phase": "Pending", "ungated_at": NOW, "unschedulable": no_claim}
    job = placed().with_status(placement=PlacementStatus(assignments=assigned)).with_pods(**waiting)
    events = []
    for now in (NOW + UNBOUND_SECONDS * minute for minute in range(10)):
        decision = job.decide(now)
        assert decision.delete == () and decision.requeue_after
        assert decision.status.placement and decision.status.placement.excluded == []
        events += decision.events
        written = is_display(job.status, decision.status)
        assert not (decision.events and written), (
            "what is only displayed may be put off, and its events would be posted again"
        )
        job = replace(job, status=decision.status)
    why = 'no node takes demo-trainer-0 and 1 more: persistentvolumeclaim "data" not found'
    assert [(e.reason, e.message) for e in events] == [(reasons.UNSCHEDULABLE, why)]
    assert [(c.reason, c.message) for c in job.status.conditions if c.type == "Placed"] == [
        (reasons.UNSCHEDULABLE, why)
    ]
    taken = job.changing_pod(1, unschedulable="0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had taints.")
    assert [p.name for p in taken.decide(now).delete] == ["demo-trainer-1"], "now another node may help"


def test_gated_pods_are_released_when_the_whole_gang_has_seats() -> None:
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="a", rank=i) for i in range(2)]
    waiting = {"node": "", "running": False, "phase": "Pending", "gates": (names.GATE,)}
    job = placed().with_pods(**waiting).with_rollout(**waiting)
    partly = job.with_status(placement=PlacementStatus(assignments=assigned)).decide()
    assert partly.ungate == ()
    whole = [*assigned, PodAssignment(pod="demo-rollout-0", node="b")]
    decision = job.with_status(placement=PlacementStatus(assignments=whole)).decide()
    assert [(b.pod.name, b.node) for b in decision.ungate] == [
        ("demo-trainer-0", "a"),
        ("demo-trainer-1", "a"),
        ("demo-rollout-0", "b"),
    ]
    assert decision.requeue_after == UNBOUND_SECONDS, "a scheduler that does nothing wakes nobody"


@pytest.mark.parametrize("arrived", [True, False])
def test_without_room_for_the_whole_gang_only_pods_that_are_there_keep_their_nodes(arrived: bool) -> None:
    """Two jobs that each wait with a part of their nodes would wait for each other."""
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="a", rank=i) for i in range(2)]
    there = {} if arrived else {"running": False, "phase": "Pending", "gates": (names.GATE,)}
    job = (
        placed()
        .with_status(placement=PlacementStatus(assignments=assigned))
        .with_pods(node="a" if arrived else "", **there)
    )
    view = JobView(job=META, spec=job.spec, suspend=False, status=job.status, pods=job.pods, now=NOW, lifecycle=LIMITS)
    request = scheduling_request(view, NODES.get)
    assert request
    results, _ = schedule_pending(Cluster((replace(NODES["a"], free={"pods": 0}),)), [request])
    assert results[0].plan.problem
    placement = job.having(scheduling=results[0]).next().placement
    assert placement and [seat.node for seat in placement.assignments] == (["a", "a"] if arrived else [])


async def test_a_running_job_asks_for_no_nodes_of_a_spec_that_applies_later() -> None:
    """A cycle for another job would promise them to it, and keep them from everybody until it is reconciled and gives them back."""
    world = World(steps=10**6)
    world.apply(scheduling={"backend": "builtin"}, rollout={"replicas": 2, "minReplicas": 1})
    await world.until(state="Running")
    for changes in ({"trainer": {"device": "cpu", "nodes": 4}}, {"rollout": {"replicas": 1, "minReplicas": 1}}):
        world.edit_spec(**changes)
        for _ in range(3):
            await world.turn()
        assert SchedulerCache(world.feed.cache).pending(world.now, ()) == []
    world.feed.cache.of_kind("ConfigMap").delete((NAMESPACE, "demo-control"))
    assert SchedulerCache(world.feed.cache).pending(world.now, ()), "as if the attempt was still to be published"


async def test_what_a_running_job_still_needs_follows_from_the_limits_that_users_change_meanwhile() -> None:
    """They apply at once, while the attempt keeps the spec that it was published with."""
    world = World(steps=10**6)
    world.apply(scheduling={"backend": "builtin"}, lifecycle={"activeDeadlineSeconds": 100_000})
    await world.until(state="Running")
    (before,) = SchedulerCache(world.feed.cache).holders(math.inf)
    world.edit_spec(lifecycle={"activeDeadlineSeconds": 10_000})
    await world.turn()
    (after,) = SchedulerCache(world.feed.cache).holders(math.inf)
    assert before.ends and after.ends
    assert after.ends == pytest.approx(before.ends - 90_000, abs=5)
