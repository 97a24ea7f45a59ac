"""Nodes that fail a job again and again, and nodes that their owner wants to be left: the job goes elsewhere if there is an elsewhere."""

import pytest

from rljob_api import reasons
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.protocol import Failure
from rljob_operator.cache.pods import REMEMBERED_SECONDS
from rljob_operator.model.scheduling import MOST_NODES
from rljob_operator.policies.nodes import STUCK_SECONDS, names_gpu
from simulator.bad_nodes import CORDON, FOUR, condition, edit_node, kill_on, node_of, on_nodes, places, the_node
from simulator.life import kill_after_writes
from simulator.makers import NOW, make_job
from simulator.objects import node_object
from simulator.world import NAMESPACE, World


async def test_a_node_on_which_ranks_are_killed_again_and_again_is_left_after_the_second_time() -> None:
    world = on_nodes(World(steps=400), *FOUR)
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", step=9, attempt=3)
    assert bad not in places(world) and len(places(world)) == 3
    entry = the_node(world, bad)
    assert entry and (entry.state, entry.failures) == ("excluded", ["attempt 1", "attempt 2"])
    assert entry.until > "1970" and "ProcessKilled: demo-trainer-1" in entry.cause
    assert world.events().count(reasons.NODE_EXCLUDED) == 1
    assert condition(world)[:2] == ("True", reasons.NODES_SOUND)
    assert world.status.restarts.total == 2


async def test_a_node_is_used_again_an_hour_after_the_last_failure() -> None:
    world = on_nodes(World(steps=10_000), *FOUR)
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", attempt=3)
    world.elapse(REMEMBERED_SECONDS)
    await world.turn()
    await world.turn()
    assert world.status.nodes == []


async def test_the_only_nodes_are_used_again_which_one_event_and_a_condition_say() -> None:
    world = on_nodes(World(steps=400), "n1", "n2", "n3")
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", step=12, attempt=3)
    entry = the_node(world, bad)
    assert entry and entry.state == "needed"
    assert world.events().count(reasons.NODE_NEEDED) == 1 and reasons.NODE_EXCLUDED not in world.events()
    status, reason, message = condition(world)
    assert (status, reason) == ("False", reasons.NODE_NEEDED)
    assert message.startswith(f"node {bad} is used, since no others have capacity for the whole gang")
    assert "2 failures in an hour" in message


async def test_of_two_quarantined_nodes_one_is_left_if_there_is_capacity_for_one_pod_only() -> None:
    world = on_nodes(World(steps=10_000, save_every=1000), *FOUR)
    await world.until(state="Running", step=3)
    bad = [node_of(world, f"demo-trainer-{i}") for i in range(2)]
    for node in bad:
        edit_node(world, node, **CORDON)
    await world.until(state="Running", attempt=2)
    await world.until(step=world.status.progress.step + 20)
    states = {node: entry.state for node in bad if (entry := the_node(world, node))}
    assert sorted(states.values()) == ["excluded", "needed"]
    (left,) = set(bad) - places(world)
    assert states[left] == "excluded"
    s = world.status
    assert s.attempt and (s.attempt.number, s.lost_steps) == (2, 0), "once"
    assert [c.status for c in s.conditions if c.type == "NodesSound"] == ["False"], "one is still in use"


async def test_another_schedulers_pods_leave_all_quarantined_nodes_or_none() -> None:
    """All of them would be replaced, and one could not go back to its node."""
    world = on_nodes(World(steps=10_000, save_every=1000), *FOUR, backend="none")
    await world.until(state="Running", step=3)
    bad = [node_of(world, f"demo-trainer-{i}") for i in range(2)]
    for node in bad:
        edit_node(world, node, **CORDON)
    await world.until(step=25)
    assert world.status.attempt and world.status.attempt.number == 1
    assert {entry.node: entry.state for entry in world.status.nodes} == dict.fromkeys(bad, "needed")


async def test_a_quarantined_node_is_worse_than_one_that_failures_point_at() -> None:
    world = on_nodes(World(steps=400), *FOUR[:3], lifecycle={"backoffSeconds": 1, "maxRestarts": 9})
    await world.until(state="Running", attempt=1)
    failing, cordoned = (node_of(world, f"demo-trainer-{i}") for i in (1, 0))
    for attempt in (1, 2):
        await kill_on(world, failing, attempt)
    await world.until(state="Running", attempt=3)
    edit_node(world, cordoned, **CORDON)
    await world.until(step=world.status.progress.step + 5)
    world.cluster.put(node_object(True, name="n4", pods=1))
    world.elapse(60)
    await world.until(state="Running", attempt=4)
    assert places(world) == {"n4", *FOUR[:3]} - {cordoned}


async def test_a_job_does_not_go_back_and_forth_between_two_nodes_that_are_equally_bad() -> None:
    world = on_nodes(World(steps=4000), *FOUR, lifecycle={"backoffSeconds": 1, "maxRestarts": 50})
    await world.until(state="Running", attempt=1)
    first = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, first, attempt)
    await world.until(state="Running", attempt=3)
    second = node_of(world, "demo-trainer-1")
    for attempt in (3, 4):
        await kill_on(world, second, attempt)
    await world.until(state="Running", attempt=5)
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=6)
    assert second in places(world) and first not in places(world)
    states = {entry.node: entry.state for entry in world.status.nodes}
    assert states == {first: "excluded", second: "needed"}


async def test_a_needed_node_is_left_at_the_next_attempt_if_another_has_come() -> None:
    world = on_nodes(World(steps=400), "n1", "n2", "n3")
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", step=12, attempt=3)
    world.cluster.put(node_object(True, name="n4", pods=1))
    world.elapse(60)
    for _ in range(5):
        await world.turn()
    assert world.status.attempt and world.status.attempt.command == "run", "its owner does not mind"
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=4)
    assert bad not in places(world)


async def test_a_job_that_excludes_no_nodes_stays_and_is_given_up() -> None:
    world = on_nodes(World(steps=400), *FOUR, scheduling={"excludeAfterFailures": 0})
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2, 3, 4):
        await kill_on(world, bad, attempt)
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.REACHED_MAX_RESTARTS
    assert world.status.nodes == []


@pytest.mark.parametrize(
    ("kind", "exception", "message", "points"),
    [
        ("killed", "Signal 9 (SIGKILL)", "", True),
        ("killed", "Signal 9 (SIGKILL)", "the container was OOMKilled", False),
        ("killed", "OutOfMemory", "the container may use 3 GiB", False),
        ("application", "RuntimeError", "CUDA error: uncorrectable ECC error encountered", True),
        ("application", "RuntimeError", "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus", True),
        ("collective", "DistBackendError", "Xid 94: contained", True),
        ("application", "RuntimeError", "NVRM: Xid (PCI:0000:41:00): 45, pid=1, Ch 00000010", False),
        ("application", "RuntimeError", "NVRM: Xid (PCI:0000:41:00): 45, then Xid (PCI:0000:41:00): 63", True),
        ("application", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("application", "ValueError", "it broke", False),
        ("collective", "DistBackendError", "connection reset by peer", False),
    ],
)
def test_failures_of_hardware_and_killed_processes_point_at_the_node_others_do_not(
    kind: str, exception: str, message: str, points: bool
) -> None:
    failure = Failure.model_validate({"kind": kind, "rank": 1, "exception": exception, "message": message, "time": NOW})
    job = make_job().with_attempt(3).running().reporting(0, state="stopped", result="failed", failure=failure)
    status = job.failing(1, kind="collective", exception="DistBackendError", time=NOW + 1).next()
    assert status.attempt and status.attempt.ended_at
    assert [(n.node, n.state, n.failures) for n in status.nodes] == (
        [("node-1", "suspect", ["attempt 3"])] if points else []
    )


def test_text_that_a_pod_made_up_is_read_in_no_time() -> None:
    hostile = Failure(kind="application", message="Xid (" * 800, lines=["Xid" + " " * 4000] * 20)
    assert not names_gpu(hostile)


async def test_a_pod_that_its_kubelet_refuses_twice_goes_to_another_node() -> None:
    world = on_nodes(World(steps=400), *FOUR)
    refused: list[str] = []
    for _ in range(12):
        await world.turn()
        pod = world.cluster.objects.get(("Pod", NAMESPACE, "demo-trainer-1"))
        node = pod["spec"].get("nodeName") if pod else None
        if pod and node and node not in refused[2:] and len(refused) < 2:
            why = "Allocate failed due to no healthy devices present"
            stored = world.cluster.edit("Pod", NAMESPACE, "demo-trainer-1")
            stored["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why}
            await world.turn()
            world.kill_pod("demo-trainer-1")
            refused.append(node)
    assert refused[0] == refused[1]
    await world.until(state="Running", step=3)
    entry = the_node(world, refused[0])
    assert entry and entry.state == "excluded" and refused[0] not in places(world)
    assert "pod demo-trainer-1 failed before it started: UnexpectedAdmissionError: Allocate failed" in entry.cause


async def test_another_schedulers_pods_avoid_the_node_by_affinity() -> None:
    world = on_nodes(World(steps=400), *FOUR, backend="none")
    await world.until(state="Running", attempt=1)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", step=9, attempt=3)
    assert bad not in places(world) and len(places(world)) == 3
    for pod in world.cluster.pods(NAMESPACE):
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [bad]}]


async def test_another_scheduler_that_finds_no_other_node_gets_the_node_back() -> None:
    """It knows more than capacities, for example which nodes can mount a volume."""
    world = on_nodes(World(steps=400), "n1", "n2", "n3", backend="none", task="sft")
    await world.until(state="Running", attempt=1)
    (spare,) = {"n1", "n2", "n3"} - places(world)
    world.cluster.full.add(spare)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    for _ in range(30):
        await world.turn()
        for pod in world.cluster.pods(NAMESPACE):
            if not pod["spec"].get("nodeName"):
                why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                stored = world.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])
                stored["metadata"]["creationTimestamp"] = "1970-01-12T13:46:40Z"
                stored["status"]["conditions"] = [why]
    entry = the_node(world, bad)
    assert entry and entry.state == "excluded"
    world.elapse(STUCK_SECONDS)
    await world.until(state="Running", step=9, attempt=3)
    entry = the_node(world, bad)
    assert entry and entry.state == "needed" and entry.retry_at
    assert bad in places(world)
    assert world.events().count(reasons.NODE_NEEDED) == 1


async def leave_two_nodes(world: World) -> tuple[object, ...]:
    """The end of a job that leaves a quarantined node, and later one that fails it twice."""
    on_nodes(world, "n1", "n2", "n3", "n4", "n5")
    await world.until(state="Running", step=3)
    edit_node(world, node_of(world, "demo-trainer-1"), **CORDON)
    await world.until(state="Running", step=6, attempt=2)
    bad = node_of(world, "demo-trainer-0")
    for attempt in (2, 3):
        await kill_on(world, bad, attempt)
    await world.until(state="Succeeded", turns=400)
    s = world.status
    return s.outcome, s.attempt and s.attempt.number, s.restarts.total, len(s.nodes), s.progress.step


@pytest.mark.slow
async def test_an_operator_killed_after_any_third_write_leaves_the_same_nodes() -> None:
    ended = await kill_after_writes(3, leave_two_nodes, steps=30)
    assert ended == ("Succeeded", 4, 3, 2, 30)


def test_signs_are_bounded_and_plain() -> None:
    taints = [
        {"key": "a" * 400, "effect": "NoSchedule"},
        {"effect": "NoSchedule"},
        {"key": "b\n", "effect": "NoExecute"},
    ]
    leave = LeaveNodes(taints=["a" * 317, "b\n"])
    assert leave.quarantine({"spec": {"taints": taints}}) == "taint b"
    many = [{"type": f"C{i}", "status": "True"} for i in range(200)]
    found = LeaveNodes(conditions=[c["type"] for c in many]).quarantine({"status": {"conditions": many}})
    assert len(found) == 200
    assert leave.quarantine({}) == leave.quarantine({"spec": None, "status": None}) == ""


def test_a_status_names_a_bounded_number_of_nodes() -> None:
    quarantined = {f"n{i}": "cordoned" for i in range(1000)}
    job = make_job().with_attempt().running()
    first = job.having(quarantined=quarantined, refuge=frozenset()).next().nodes
    assert len(first) == MOST_NODES
    again = (
        job.with_status(nodes=first)
        .failing(1, kind="killed")
        .having(quarantined=quarantined, refuge=frozenset())
        .next()
    )
    assert again.nodes == first, "node-1, on which a rank was killed, has no entry, and no other loses its own"


async def test_a_node_is_taken_back_when_the_other_one_binds_no_pod() -> None:
    world = on_nodes(World(steps=4000), "n1", "n2", "n3", task="sft")
    await world.until(state="Running", attempt=1)
    (spare,) = {"n1", "n2", "n3"} - places(world)
    world.cluster.full.add(spare)
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await kill_on(world, bad, attempt)
    await world.until(state="Running", step=9, attempt=3)
    assert bad in places(world)
    assert (entry := the_node(world, bad)) and entry.state == "needed"
    assert world.status.placement and [e.node for e in world.status.placement.excluded] == [spare]
