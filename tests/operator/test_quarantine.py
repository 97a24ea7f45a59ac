"""Nodes that their owner quarantines."""

import pytest

from rljob_api import reasons
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.policy import JobPolicy
from rljob_operator.kube.api import Object
from simulator.bad_nodes import CORDON, FOUR, TAINT, condition, edit_node, node_of, on_nodes, places, the_node
from simulator.objects import node_object
from simulator.world import World

QUARANTINES = [
    ({"spec": {"unschedulable": True}}, "cordoned"),
    (
        {"spec": {"taints": [{"key": "nvidia.com/gpu-xid-error", "effect": "NoSchedule"}]}},
        "taint nvidia.com/gpu-xid-error",
    ),
    ({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoExecute"}]}}, "taint karpenter.sh/disrupted"),
    ({"conditions": [{"type": "GpuXidError", "status": "True"}]}, "condition GpuXidError"),
    (
        {"conditions": [{"type": "AcceleratedHardwareReady", "status": "False"}]},
        "condition AcceleratedHardwareReady=False",
    ),
]


@pytest.mark.parametrize("backend", ["builtin", "none"])
@pytest.mark.parametrize(("sign", "why"), QUARANTINES)
async def test_a_quarantined_node_is_left_at_the_end_of_a_step(sign: Object, why: str, backend: str) -> None:
    world = on_nodes(World(steps=400, save_every=1000), *FOUR, backend=backend)
    await world.until(state="Running", step=5)
    bad = node_of(world, "demo-trainer-1")
    edit_node(world, bad, **sign)
    await world.until(state="Running", attempt=2)
    assert bad not in places(world)
    entry = the_node(world, bad)
    assert entry and (entry.state, entry.quarantine, entry.failures) == ("excluded", why, [])
    await world.until(state="Running", step=20)
    s = world.status
    assert (s.lost_steps, s.restarts.total, s.restarts.counted) == (0, 1, 0)
    assert s.attempt and s.attempt.number == 2, "once"
    assert s.last_failure is None
    assert world.events().count(reasons.NODE_EXCLUDED) == 1


async def test_a_quarantined_node_without_another_is_used_on_which_one_event_and_a_condition_say() -> None:
    world = on_nodes(World(steps=10_000, save_every=1000), "n1", "n2", "n3")
    await world.until(state="Running", step=3)
    bad = node_of(world, "demo-trainer-1")
    edit_node(world, bad, **CORDON)
    await world.until(step=20)
    s = world.status
    assert s.attempt and (s.attempt.number, s.attempt.command) == (1, "run")
    assert world.events().count(reasons.NODE_NEEDED) == 1
    assert condition(world)[:2] == ("False", reasons.NODE_NEEDED)
    assert condition(world)[2].endswith("in spite of: cordoned")
    world.cluster.put(node_object(True, name="n4", pods=1))
    world.elapse(60)
    await world.until(state="Running", attempt=2)
    assert bad not in places(world) and world.status.lost_steps == 0


async def test_a_node_that_is_good_again_is_forgotten() -> None:
    world = on_nodes(World(steps=400), "n1", "n2", "n3")
    await world.until(state="Running", step=3)
    bad = node_of(world, "demo-trainer-1")
    edit_node(world, bad, **CORDON)
    await world.until(step=8)
    edit_node(world, bad, spec={"unschedulable": False})
    await world.until(step=12)
    assert world.status.nodes == [] and condition(world)[:2] == ("True", reasons.NODES_SOUND)


async def test_only_the_administrators_signs_count() -> None:
    policy = JobPolicy(leave_nodes=LeaveNodes(cordoned=False, taints=["example.com/sick"], conditions=[]))
    world = on_nodes(World(steps=400, policy=policy), *FOUR)
    await world.until(state="Running", step=3)
    bad = node_of(world, "demo-trainer-1")
    edit_node(world, bad, **CORDON, conditions=[{"type": "GpuXidError", "status": "True"}])
    await world.until(step=9)
    assert world.status.attempt and world.status.attempt.number == 1 and world.status.nodes == []
    edit_node(world, bad, spec={"taints": [{"key": "example.com/sick", "effect": "PreferNoSchedule"}]})
    await world.until(step=15)
    assert world.status.nodes == [], "it keeps nobody away"
    edit_node(world, bad, spec={"taints": [{"key": "example.com/sick", "effect": "NoSchedule"}]})
    await world.until(state="Running", attempt=2)
    assert bad not in places(world)


async def test_a_server_leaves_a_quarantined_node_while_the_attempt_goes_on() -> None:
    world = on_nodes(World(steps=400), *FOUR)
    await world.until(state="Running", step=3)
    bad = node_of(world, "demo-rollout-0")
    edit_node(world, bad, **TAINT)
    await world.until(step=12)
    assert world.status.attempt and world.status.attempt.number == 1
    assert node_of(world, "demo-rollout-0") not in ("", bad)


async def test_a_new_job_prefers_nodes_that_are_not_quarantined_and_takes_them_if_it_must() -> None:
    sick = [{"type": "SysLogsXIDError", "status": "True"}]
    for nodes, taken in ((("n1", "n2", "n3", "n4"), {"n2", "n3", "n4"}), (("n1", "n2", "n3"), {"n1", "n2", "n3"})):
        world = World(steps=400)
        for name in nodes:
            world.cluster.put(node_object(True, name=name, pods=1))
        edit_node(world, "n1", conditions=sick)
        world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
        world.apply(scheduling={"backend": "builtin"})
        await world.until(state="Running", step=5)
        assert places(world) == taken
        assert world.status.attempt and world.status.attempt.number == 1


async def test_a_quarantine_wakes_the_job_and_so_does_time_when_it_waits_for_a_node() -> None:
    world = on_nodes(World(steps=10_000, save_every=1000), "n1", "n2", "n3")
    await world.until(state="Running", step=3)
    world.launchers.clear()  # nobody reports any more, so that only the node's event and the clock wake it
    for _ in range(3):
        await world.turn()
    bad = node_of(world, "demo-trainer-1")
    edit_node(world, bad, **CORDON)
    for _ in range(3):
        await world.turn()
    assert (entry := the_node(world, bad)) and entry.state == "needed"
    world.cluster.put(node_object(True, name="n4", pods=1))
    for _ in range(70):
        await world.turn()
    assert (entry := the_node(world, bad)) and entry.state == "excluded"
