"""Pods that were deleted and do not end although their nodes answer: named, and passed over."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import names, reasons
from rljob_api.status import Condition
from rljob_operator.cache.deleted_pods import DeletedPods
from rljob_operator.cache.pods import Pod
from rljob_operator.endpoints import Metrics
from rljob_operator.model.ordinals import is_held, ordinals, server_ordinals
from rljob_operator.times import stamp
from simulator.crowd import Crowd
from simulator.makers import NOW, make_job
from simulator.objects import node_object
from simulator.scraping import samples
from simulator.world import NAMESPACE, World

LIMIT = 60
POD = "demo-trainer-1"
JOB = (NAMESPACE, "demo")


def keep(world: World, finalizer: str = "example.com/keep") -> None:
    """Somebody deletes it, it ends, and the finalizer of another controller keeps it."""
    world.hang_pod(POD)
    pod = world.cluster.edit("Pod", NAMESPACE, POD)
    pod["metadata"]["finalizers"] = [finalizer]
    pod["status"] |= {"phase": "Failed", "containerStatuses": []}


async def running(**lifecycle: Any) -> World:
    world = World(steps=4000)
    world.apply(lifecycle={"nodeLossSeconds": LIMIT, "drainTimeoutSeconds": 20} | lifecycle)
    await world.until(state="Running", step=3)
    return world


def stalled(world: World) -> Condition:
    return next(c for c in world.status.conditions if c.type == "Stalled")


def warnings(world: World) -> list[str]:
    events = (o for (kind, _, _), o in world.cluster.objects.items() if kind == "Event")
    return [o["message"] for o in events if (o["type"], o["reason"]) == ("Warning", reasons.POD_STUCK)]


async def test_a_pod_whose_container_cannot_be_killed_is_named_and_another_stands_in() -> None:
    world = await running()
    world.hang_pod(POD)
    await world.until(state="Restarting")
    assert world.status.message == f"finishing the step and saving (PodDeleting: {POD})"
    begun = world.now
    while not world.status.stuck_pods:
        await world.turn()
    assert world.now - begun < LIMIT + 2
    since = stamp(begun - 1)
    said = f"pod {POD} on node node-1 should have ended at {since} and its container still runs"
    assert said in world.status.message and "taint the node node.kubernetes.io/out-of-service" in world.status.message
    assert (stalled(world).status, stalled(world).reason) == ("True", reasons.POD_STUCK)
    assert said in stalled(world).message
    await world.until(state="Running", attempt=2)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", "demo-trainer-2"]
    assert world.status.restarts.counted == 0
    await world.until(step=world.status.progress.step + 20)
    assert stalled(world).status == "False", "the job goes on"
    assert said in world.status.message, "and the pod still holds its devices"
    assert len(warnings(world)) == 1 and warnings(world)[0].startswith(said)
    world.feed.deliver()
    found = {x.name: x.value for x in samples(Metrics(world.feed.cache, {}, lambda: 0.0, {}))}
    assert found["rljob_job_stuck_pods"] == 1


async def test_a_pod_that_a_foreign_finalizer_keeps_is_passed_over_too() -> None:
    world = await running()
    keep(world)
    await world.until(state="Running", attempt=2)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", "demo-trainer-2"]
    (said,) = warnings(world)
    assert said.startswith(f"pod {POD} on node node-1 has ended, and since ")
    assert said.endswith("is kept by finalizer example.com/keep, whose controller has to remove it")


async def test_a_pod_that_kueue_keeps_after_its_end_is_let_go_and_another_gets_its_name() -> None:
    world = await running()
    before = world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["uid"]
    keep(world, "kueue.x-k8s.io/managed")
    await world.until(state="Running", attempt=2, turns=LIMIT // 2)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", POD]
    assert world.launcher(1).pod_uid != before
    assert warnings(world) == []


async def test_a_pod_that_kueue_keeps_is_not_let_go_while_its_container_runs() -> None:
    world = await running()
    world.hang_pod(POD)
    world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["finalizers"] = ["kueue.x-k8s.io/managed"]
    await world.until(state="Running", attempt=2)
    assert world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]


async def test_when_the_pod_is_gone_nothing_is_said_of_it_and_its_ordinal_is_used_again() -> None:
    world = await running()
    world.hang_pod(POD)
    await world.until(state="Running", attempt=2)
    world.kill_pod(POD)
    await world.until(step=world.status.progress.step + 5)
    assert world.status.stuck_pods == [] and POD not in world.status.message
    assert world.status.attempt and world.status.attempt.number == 2, "nobody is disturbed"
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=3)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", POD]


async def test_a_pod_that_cannot_die_does_not_suspend_the_limits_of_the_job() -> None:
    world = await running(activeDeadlineSeconds=30)
    world.hang_pod(POD)
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.ACTIVE_DEADLINE_EXCEEDED


async def test_a_job_is_suspended_although_a_pod_cannot_die() -> None:
    world = await running()
    world.hang_pod(POD)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    assert POD in world.status.message


async def test_a_rollout_that_cannot_die_is_replaced_while_the_attempt_runs() -> None:
    world = await running()
    world.hang_pod("demo-rollout-0")
    for _ in range(LIMIT + 5):
        await world.turn()
    status = world.cluster.objects["Pod", NAMESPACE, "demo-rollout-1"]["status"]
    assert status["phase"] == "Running"
    assert world.status.attempt and world.status.attempt.number == 1
    assert world.control and [x.pod for x in world.control.rollouts] == ["demo-rollout-1"]
    assert stalled(world).status == "False"
    assert len(warnings(world)) == 1


async def test_a_gang_without_room_for_another_pod_stays_stalled_by_the_one_that_hangs() -> None:
    crowd = Crowd({"a": 3}, lingering=True)
    crowd.apply("demo", trainers=2, lifecycle={"nodeLossSeconds": LIMIT})
    await crowd.turns(4)
    crowd.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["deletionTimestamp"] = stamp(crowd.now)
    await crowd.turns(LIMIT + 10)
    status = crowd.status("demo")
    assert status.placement and status.placement.problem
    conditions = {c.type: c for c in status.conditions}
    assert (conditions["Stalled"].status, conditions["Stalled"].reason) == ("True", reasons.POD_STUCK)
    assert conditions["Reconciling"].status == "False", "never both"
    assert [(x.pod, x.node) for x in status.stuck_pods] == [(POD, "a")]


class Flapping:
    """The node of the pod that hangs falls silent and is back, again and again. `up`, `down`: for how many turns."""

    def __init__(self, world: World, up: int, down: int) -> None:
        self._world, self._phases = world, cycle([False] * down + [True] * up)
        pod = world.cluster.edit("Pod", NAMESPACE, POD)
        pod["spec"]["nodeName"] = "flaky"
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        world.cluster.put(node_object(True, stamp(world.now), name="flaky"))
        world.cluster.full.add("flaky")

    async def turn(self) -> None:
        status = "True" if next(self._phases) else "Unknown"
        if status != self._ready()["status"]:
            self._world.cluster.edit("Node", None, "flaky")
            self._ready().update(status=status, lastTransitionTime=stamp(self._world.now))
        await self._world.turn()

    def _ready(self) -> dict[str, Any]:
        condition: dict[str, Any] = self._world.cluster.objects["Node", None, "flaky"]["status"]["conditions"][0]
        return condition


@pytest.mark.parametrize(("up", "down"), [(5, 5), (LIMIT - 5, 5), (2, LIMIT - 5), (LIMIT - 5, LIMIT - 5)])
async def test_a_pod_that_cannot_die_is_passed_over_for_good_although_its_node_comes_and_goes(
    up: int, down: int
) -> None:
    world = await running()
    node, begun = Flapping(world, up, down), world.now
    world.hang_pod(POD)
    stand_in = ("Pod", NAMESPACE, "demo-trainer-2")
    while stand_in not in world.cluster.objects:
        await node.turn()
        assert world.now - begun < down + LIMIT + 5
    uid, report = world.cluster.objects[stand_in]["metadata"]["uid"], world._report
    world._report = lambda: None  # type: ignore[method-assign]
    for _ in range(3 * (up + down)):
        await node.turn()
        assert world.cluster.objects[stand_in]["metadata"]["uid"] == uid, "it may need long to start"
    world._report = report  # type: ignore[method-assign]
    for _ in range(3 * (up + down)):
        await node.turn()
        assert [stuck.pod for stuck in world.status.stuck_pods] == [POD]
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", "demo-trainer-2"]
    assert len(warnings(world)) == 1, "it is no news whenever its node is back"


def pod(ordinal: int, **fields: Any) -> Pod:
    return Pod(name=f"demo-trainer-{ordinal}", uid=f"u{ordinal}", role="trainer", ordinal=ordinal, **fields)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"deleting": True, "delete_by": 941.0}, [0, 1]),
        ({"deleting": True, "delete_by": 940.0}, [0, 2]),
        ({"deleting": True, "delete_by": 2000.0}, [0, 1]),
        ({"deleting": True, "delete_by": 1.0, "answers_since": 941.0}, [0, 1]),
        ({"deleting": True, "delete_by": 1.0, "answers_since": 940.0}, [0, 2]),
        ({"deleting": True, "delete_by": 1.0, "lost_since": 0.0}, [0, 1]),
        ({"deleting": True, "delete_by": 1.0, "lost_since": 0.0, "finalizers": ("x/y",)}, [0, 2]),
    ],
)
def test_an_ordinal_is_passed_over_when_its_pod_does_not_end(fields: dict[str, Any], wanted: list[int]) -> None:
    """A node that is back has as much time to end its pods. A pod whose node is gone is deleted by force, which finalizers survive."""
    assert ordinals((pod(0), pod(1, **fields)), names.ROLE_TRAINER, 2, LIMIT, now=1000.0) == wanted


@given(st.booleans(), st.lists(st.integers(1, 15), max_size=12), st.integers(-50, 50))
def test_however_a_node_comes_and_goes_its_deleted_pod_is_passed_over_in_time_and_until_it_is_back_from_a_loss(
    ready: bool, phases: list[int], grace: int
) -> None:
    """`phases`: for how many seconds the node answers, and then does not; `ready`: whether it does first."""
    deleted, now, limit, held = DeletedPods(), 1000, 7, list[bool]()
    due = now + max(0, grace)
    for lasting in phases:
        node = {"answers_since": float(now)} if ready else {"lost_since": float(now)}
        for passed in range(lasting):
            (one,) = deleted.observe(JOB, [pod(1, deleting=True, delete_by=1000.0 + grace, **node)], limit, now)
            held.append(is_held(one, limit, now))
            is_back = not held[-1] and any(held[-2:-1])
            assert not is_back or (ready and passed == 0), "for no other reason it is waited for again"
            assert any(held[-2 * limit :]) or now < due + 2 * limit
            now += 1
        ready = not ready


def test_nothing_is_remembered_of_pods_that_are_gone_or_were_deleted_anew() -> None:
    deleted, back = DeletedPods(), pod(1, deleting=True, delete_by=100.0, answers_since=50.0)
    deleted.observe(JOB, [back], LIMIT, 60.0)
    again = replace(back, answers_since=70.0)
    assert deleted.remembered(JOB, again).answers_since == 50.0
    assert deleted.remembered(JOB, replace(again, delete_by=90.0)).answers_since == 70.0
    assert deleted.remembered(JOB, replace(again, uid="another")).answers_since == 70.0
    assert deleted.remembered(("research", "other"), again).answers_since == 70.0
    deleted.observe(JOB, [], LIMIT, 80.0)
    assert deleted.remembered(JOB, again).answers_since == 70.0


@pytest.mark.parametrize("seen_silent", [True, False])
@pytest.mark.parametrize("back_after", [LIMIT - 1, LIMIT, 10 * LIMIT])
def test_a_node_that_may_have_been_lost_while_nobody_looked_has_the_whole_time_again(
    back_after: int, seen_silent: bool
) -> None:
    deleted, looked, back = DeletedPods(), 1000.0, 1000.0 + back_after
    one = pod(1, deleting=True, delete_by=900.0, answers_since=50.0)
    deleted.observe(JOB, [one], LIMIT, looked - 1)
    deleted.observe(JOB, [replace(one, lost_since=looked - 1) if seen_silent else one], LIMIT, looked)
    (again,) = deleted.observe(JOB, [replace(one, answers_since=back)], LIMIT, back + 1)
    short = back_after < LIMIT
    assert is_held(again, LIMIT, back + 1) == short
    assert is_held(again, LIMIT, back + LIMIT)


async def test_the_observer_says_since_when_the_node_of_a_pod_answers() -> None:
    world = await running()
    node = world.cluster.edit("Node", None, "node-1")
    node["status"]["conditions"][0]["lastTransitionTime"] = stamp(world.now)
    world.hang_pod(POD)
    world.cluster.edit("Pod", NAMESPACE, POD)["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.cluster.edit("Pod", NAMESPACE, POD)["metadata"]["deletionTimestamp"] = stamp(world.now - 10_000)
    back = world.now
    while not world.status.stuck_pods:
        await world.turn()
    assert LIMIT <= world.now - back <= LIMIT + 2


def test_a_server_that_does_not_end_is_passed_over_while_an_attempt_runs() -> None:
    status = make_job().with_attempt().status
    stuck = Pod(name="demo-rollout-0", uid="r", role="rollout", ordinal=0, running=True, deleting=True, delete_by=1.0)
    assert server_ordinals(status, (stuck,), names.ROLE_ROLLOUT, 1, LIMIT, now=1000.0) == [1]


def test_a_reconcile_is_due_when_a_deleted_pod_counts_as_stuck() -> None:
    job = make_job(lifecycle={"nodeLossSeconds": LIMIT}, scheduling={"backend": "none"}).with_pods()
    assert job.changing_pod(1, deleting=True, delete_by=NOW - 20).decide().requeue_after == 40


def test_many_pods_that_do_not_end_are_one_sentence_and_a_bounded_part_of_the_status() -> None:
    job = make_job(nodes=20).with_pods(deleting=True, delete_by=NOW - 1000)
    status = job.next()
    assert len(status.stuck_pods) == 8
    assert status.message.endswith("; others do not end either")
