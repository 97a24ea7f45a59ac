"""Servers of several pods: they start and end as a whole, alone."""

from collections.abc import Sequence
from cProfile import Profile
from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_api.protocol import Failure, Report
from rljob_api.server_group import ServerGroup, ServerPart
from rljob_api.status_parts import Preemption, ServerStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.policies.decide import decide
from rljob_operator.render.template import pod_template, template_hash
from rljob_operator.times import stamp
from simulator.makers import META, NOW, Job, make_job
from simulator.parts import Part
from simulator.world import NAMESPACE, World

BACKENDS = ["none", "builtin"]


def servers(replicas: int = 2, nodes: int = 2, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "nodes": nodes, "tensorParallel": nodes, "sampling": {"maxTokens": 8}} | more


def groups(world: World) -> dict[str, ServerGroup]:
    assert world.control
    return {group.name: group for group in world.control.servers}


def rollouts(world: World) -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith("demo-rollout-")}


def heads(world: World) -> list[str]:
    assert world.control
    return [endpoint.pod for endpoint in world.control.rollouts]


def part(world: World, ordinal: int) -> Part:
    return world.parts[world.cluster.objects[("Pod", NAMESPACE, f"demo-rollout-{ordinal}")]["metadata"]["uid"]]


async def turns(world: World, count: int) -> None:
    for _ in range(count):
        await world.turn()


async def serving(backend: str = "builtin", **rollout: Any) -> World:
    world = World(steps=10**6)
    world.apply(rollout=servers(**rollout), scheduling={"backend": backend})
    await world.until(state="Running", step=3)
    await turns(world, 6)
    return world


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_starts_when_all_its_pods_are_there_and_its_head_alone_is_an_endpoint(backend: str) -> None:
    world = await serving(backend)
    assert list(rollouts(world)) == [f"demo-rollout-{i}" for i in range(4)]
    found = groups(world)
    assert [[p.pod for p in g.parts] for g in found.values()] == [
        ["demo-rollout-0", "demo-rollout-1"],
        ["demo-rollout-2", "demo-rollout-3"],
    ]
    assert [[p.node_rank for p in g.parts] for g in found.values()] == [[0, 1], [0, 1]]
    assert {g.generation for g in found.values()} == {1} and {g.master_port for g in found.values()} == {
        names.server_port(1)
    }
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    assert world.status.rollout.text == "2/2" and world.status.rollout.unready == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lost", [2, 3])
async def test_a_lost_pod_takes_its_server_down_and_up_as_a_whole_and_nothing_else(backend: str, lost: int) -> None:
    world = await serving(backend)
    before, other = rollouts(world), groups(world)["demo-rollout-0"]
    world.kill_pod(f"demo-rollout-{lost}")
    await turns(world, 1)
    await world.turn()
    assert heads(world) == ["demo-rollout-0"] or groups(world)["demo-rollout-1"].generation == 2
    await turns(world, 8)
    after = rollouts(world)
    assert {name for name in before if after[name] != before[name]} == {f"demo-rollout-{lost}"}
    again = groups(world)["demo-rollout-1"]
    assert again.generation == 2 and again.master_port == names.server_port(2)
    assert again.rpc_port == names.server_rpc_port(2) != again.master_port
    assert {p.pod_uid for p in again.parts} == {after["demo-rollout-2"], after["demo-rollout-3"]}
    assert groups(world)["demo-rollout-0"] == other, "the other server goes on"
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    assert world.status.attempt and (world.status.attempt.number, world.status.restarts.total) == (1, 0)
    assert world.events().count(reasons.SERVER_RESTARTED) == 1


async def test_a_part_that_fails_ends_the_generation_and_the_next_starts_after_a_pause() -> None:
    world = await serving()
    before = rollouts(world)
    part(world, 1).fail(world.now)
    await turns(world, 2)
    assert "demo-rollout-0" not in groups(world) and heads(world) == ["demo-rollout-2"]
    assert world.status.rollout.text == "1/2"
    await turns(world, 12)
    assert rollouts(world) == before and groups(world)["demo-rollout-0"].generation == 2
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    event = next(
        o
        for (kind, _, _), o in world.cluster.objects.items()
        if kind == "Event" and o["reason"] == reasons.SERVER_RESTARTED
    )
    assert event["message"] == (
        "rollout server 0 starts again as a whole: demo-rollout-1: ServerLost: its engine ended"
    )


async def test_the_cause_is_the_part_that_failed_and_not_one_that_lost_it() -> None:
    world = await serving()
    part(world, 0).fail(world.now, "lost its peers", kind="collective")
    part(world, 1).fail(world.now, "out of memory")
    await turns(world, 3)
    events = [o for (kind, _, _), o in world.cluster.objects.items() if kind == "Event"]
    (text,) = [event["message"] for event in events if event["reason"] == reasons.SERVER_RESTARTED]
    assert text == "rollout server 0 starts again as a whole: demo-rollout-1: ServerLost: out of memory"


async def test_a_failure_that_is_reported_after_the_next_generation_began_does_not_end_that_one() -> None:
    world = await serving()
    part(world, 0).fail(world.now)
    while "demo-rollout-0" not in groups(world) or groups(world)["demo-rollout-0"].generation == 1:
        await world.turn()
    late = part(world, 1)
    late.failure, late.failed_generation = Failure(kind="collective", exception="ServerLost", time=world.now), 1
    await turns(world, 12)
    assert groups(world)["demo-rollout-0"].generation == 2
    assert world.events().count(reasons.SERVER_RESTARTED) == 1
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]


async def test_a_server_that_fails_again_and_again_waits_longer_each_time() -> None:
    world = await serving()
    pauses = list[float]()
    for generation in range(1, 5):
        assert groups(world)["demo-rollout-0"].generation == generation
        part(world, 0).fail(world.now)
        began = world.elapsed
        while "demo-rollout-0" not in groups(world) or groups(world)["demo-rollout-0"].generation == generation:
            await world.turn()
        pauses.append(world.elapsed - began)
    assert pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0]
    world.elapse(1300)
    await turns(world, 2)
    part(world, 0).fail(world.now)
    await turns(world, 2)
    assert next(one for one in world.status.servers if one.index == 0).failures == 1, "it ran for long"


async def test_a_container_that_ends_is_not_listed_again_by_its_dead_boot() -> None:
    world = await serving()
    name = "demo-rollout-1"
    dead = part(world, 1)
    status = world.cluster.edit("Pod", NAMESPACE, name)["status"]
    status["containerStatuses"] = [{"name": "rollout", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    await turns(world, 2)
    assert "demo-rollout-0" not in groups(world)
    status = world.cluster.edit("Pod", NAMESPACE, name)["status"]
    status["containerStatuses"] = [{"name": "rollout", "state": {"running": {}}}]
    dead.dark = True  # it does not report yet
    await turns(world, 10)
    assert "demo-rollout-0" not in groups(world)
    assert world.status.rollout.unready == ["rollout server 0: demo-rollout-1 restarts"]
    world.parts[dead.pod_uid] = Part(dead.pod, dead.pod_uid, "next-boot")
    await turns(world, 6)
    assert groups(world)["demo-rollout-0"].parts[1].boot_id == "next-boot"
    assert groups(world)["demo-rollout-0"].generation == 2


@pytest.mark.parametrize("backend", BACKENDS)
async def test_scaling_counts_servers_and_removes_whole_ones(backend: str) -> None:
    world = await serving(backend)
    first = groups(world)["demo-rollout-0"]
    for replicas in (4, 1, 2):
        world.edit_spec(rollout=servers(replicas))
        await turns(world, 10)
        assert list(rollouts(world)) == [f"demo-rollout-{i}" for i in range(2 * replicas)]
        assert heads(world) == [f"demo-rollout-{2 * i}" for i in range(replicas)]
        assert world.status.rollout.text == f"{replicas}/{replicas}"
        assert groups(world)["demo-rollout-0"] == first
    assert world.status.attempt and world.status.attempt.number == 1


async def test_the_scale_subresource_selects_one_pod_for_each_server() -> None:
    world = await serving()
    wanted = dict(pair.split("=") for pair in world.status.rollout.selector.split(","))
    found = [
        p["metadata"]["name"]
        for p in world.cluster.pods(NAMESPACE)
        if wanted.items() <= p["metadata"]["labels"].items()
    ]
    assert found == ["demo-rollout-0", "demo-rollout-2"] and world.status.rollout.ready == 2
    world.kill_pod("demo-rollout-2")
    await turns(world, 8)
    found = [
        p["metadata"]["name"]
        for p in world.cluster.pods(NAMESPACE)
        if wanted.items() <= p["metadata"]["labels"].items()
    ]
    assert found == ["demo-rollout-0", "demo-rollout-2"]


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_pod_that_cannot_die_is_replaced_at_its_rank(backend: str) -> None:
    world = World(steps=10**6)
    world.apply(rollout=servers(), scheduling={"backend": backend}, lifecycle={"nodeLossSeconds": 5})
    await world.until(state="Running", step=3)
    await turns(world, 6)
    world.hang_pod("demo-rollout-0")
    await turns(world, 16)
    found = groups(world)
    assert [p.pod for p in found["demo-rollout-0"].parts] == ["demo-rollout-4", "demo-rollout-1"]
    assert [p.pod for p in found["demo-rollout-1"].parts] == ["demo-rollout-2", "demo-rollout-3"]
    assert found["demo-rollout-1"].generation == 1 and heads(world) == ["demo-rollout-4", "demo-rollout-2"]
    world.wake_pods()
    await turns(world, 10)
    again = groups(world)
    assert again == found, "the pod that took its place stays"
    idle = world.cluster.objects[("Pod", NAMESPACE, "demo-rollout-0")]
    assert not idle["spec"].get("nodeName"), "nobody needs it, so it holds no node"
    world.edit_spec(rollout=servers(1))
    await turns(world, 8)
    assert list(groups(world)) == ["demo-rollout-1"], "those of the highest ordinals go, so that the set can shrink"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_suspended_job_has_no_servers_and_a_resumed_one_has_new_ones(backend: str) -> None:
    world = await serving(backend)
    before = rollouts(world)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await turns(world, 2)
    assert (rollouts(world), groups(world), world.status.servers) == ({}, {}, [])
    world.request("n2", "resume")
    await world.until(state="Running")
    await turns(world, 8)
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    assert not {p.pod_uid for g in groups(world).values() for p in g.parts} & set(before.values())


async def test_a_preempted_job_ends_its_servers_without_a_warning_and_has_new_ones_when_it_runs_again() -> None:
    world = await serving()
    before = rollouts(world)
    left = Preemption(by="research/high", since=stamp(world.now))
    world.cluster.edit("RLJob", NAMESPACE, "demo")["status"]["preemption"] = left.model_dump(by_alias=True)
    while not (world.status.preemption and world.status.preemption.released):
        await world.turn()
    assert reasons.SERVER_RESTARTED not in world.events()
    await world.until(state="Running", attempt=2)
    await turns(world, 8)
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    assert not set(rollouts(world).values()) & set(before.values())
    assert reasons.SERVER_RESTARTED not in world.events()


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_that_goes_back_to_lower_ordinals_says_so(backend: str) -> None:
    world = World(steps=10**6)
    world.apply(rollout=servers(), scheduling={"backend": backend}, lifecycle={"nodeLossSeconds": 5})
    await world.until(state="Running", step=3)
    world.hang_pod("demo-rollout-0")
    await turns(world, 16)
    world.wake_pods()
    await turns(world, 10)
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    await turns(world, 8)
    assert [p.pod for p in groups(world)["demo-rollout-0"].parts] == ["demo-rollout-0", "demo-rollout-1"]
    events = [o for (kind, _, _), o in world.cluster.objects.items() if kind == "Event"]
    texts = [event["message"] for event in events if event["reason"] == reasons.SERVER_RESTARTED]
    assert texts[-1] == "rollout server 0 starts again as a whole: pod demo-rollout-4 gives its place to demo-rollout-0"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_scaling_down_ends_a_server_that_is_not_whole_before_those_that_are(backend: str) -> None:
    world = await serving(backend, replicas=3)
    for _ in range(4):
        while "demo-rollout-0" not in groups(world):
            await world.turn()
        part(world, 0).fail(world.now)
        await turns(world, 2)
    assert heads(world) == ["demo-rollout-2", "demo-rollout-4"]
    world.edit_spec(rollout=servers(2))
    for _ in range(10):
        await world.turn()
        assert heads(world) == ["demo-rollout-2", "demo-rollout-4"]
    assert world.status.rollout.text == "2/2" and [one.index for one in world.status.servers] == [1, 2]
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    await turns(world, 8)
    assert sorted(rollouts(world)) == [f"demo-rollout-{i}" for i in range(4)], "the set shrinks with the next attempt"
    assert world.status.rollout.text == "2/2"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_servers_live_on_while_the_trainers_start_again(backend: str) -> None:
    world = await serving(backend)
    before = groups(world)
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=2)
    assert groups(world) == before and heads(world) == ["demo-rollout-0", "demo-rollout-2"]


async def test_another_number_of_pods_comes_with_the_next_attempt() -> None:
    world = await serving()
    before = rollouts(world)
    world.edit_spec(rollout=servers(nodes=4))
    await turns(world, 5)
    assert rollouts(world) == before
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    await turns(world, 10)
    assert [len(g.parts) for g in groups(world).values()] == [4, 4] and not set(before.values()) & set(
        rollouts(world).values()
    )


async def test_pools_have_servers_of_several_pods_too() -> None:
    world = World(steps=10**6)
    judge = {"name": "judge", "model": "/data/judge", "replicas": 2, "nodes": 2, "tensorParallel": 2}
    world.apply(pools=[judge], rewards=[{"vllm": {"pool": "judge"}}])
    await world.until(state="Running", step=3)
    await turns(world, 6)
    assert world.control and [e.pod for e in world.control.pools["judge"]] == ["demo-judge-0", "demo-judge-2"]
    assert list(groups(world)) == ["demo-judge-0", "demo-judge-1"] and world.status.pools["judge"].text == "2/2"
    assert heads(world) == ["demo-rollout-0"], "rollouts are one pod each"


async def test_the_status_names_the_pod_that_a_server_waits_for() -> None:
    world = await serving()
    world.cluster.full.add("node-1")
    world.kill_pod("demo-rollout-3")
    await turns(world, 4)
    assert world.status.rollout.text == "1/2"
    assert world.status.rollout.unready == ["rollout server 1: demo-rollout-3 has no node"]


def whole(ready: Sequence[bool]) -> Job:
    """With one server, whose generation runs, and pods of it that are ready or not."""
    pods = [
        Pod(
            name=f"demo-rollout-{i}", uid=f"r{i}", role="rollout", ordinal=i, phase="Running", running=True, ready=is_ready, node="n",
            ip="10.1.0.1",
        )
        for i, is_ready in enumerate(ready)
    ]  # fmt: skip
    parts = [
        ServerPart(pod=pod.name, pod_uid=pod.uid, boot_id=f"b{i}", address=pod.ip, node_rank=i)
        for i, pod in enumerate(pods)
    ]
    job = make_job(rollout=servers(1, len(ready)), scheduling={"backend": "none"}).with_attempt().running(step=4)
    server = ServerStatus(role="rollout", index=0, ordinals=list(range(len(ready))), generation=1, parts=parts)
    reports = {part.pod: Report(pod=part.pod, pod_uid=part.pod_uid, boot_id=part.boot_id, attempt=1) for part in parts}
    return replace(job, pods=(*job.pods, *pods), reports=job.reports | reports).with_status(servers=[server])


@pytest.mark.parametrize(
    ("ready", "text", "unready"),
    [
        ([False, True, True], "0/1", ["rollout server 0: demo-rollout-0 does not answer yet"]),
        ([False, True, False], "0/1", ["rollout server 0: demo-rollout-2 has not started its workers yet"]),
        ([True, True, True], "1/1", []),
    ],
)
def test_the_status_names_the_pod_that_a_server_which_starts_waits_for(
    ready: Sequence[bool], text: str, unready: list[str]
) -> None:
    rollout = whole(ready).next().rollout
    assert (rollout.text, rollout.unready) == (text, unready)


def test_a_server_that_cannot_answer_fails_a_misconfigured_job_although_its_followers_are_ready() -> None:
    failure = Failure(kind="configuration", message="vLLM refused its arguments: correct spec.rollout.vllmArgs")
    report = Report(pod="demo-rollout-0", pod_uid="r0", boot_id="b0", failure=failure)
    job = whole([False, True])
    status = replace(job, reports=job.reports | {report.pod: report}).next()
    assert status.attempt and status.attempt.reason == reasons.CONFIGURATION_ERROR


def test_the_end_of_a_release_is_looked_at_although_nothing_else_happens() -> None:
    waiting = ServerStatus(role="rollout", index=0, ordinals=[0, 1], released_until=stamp(NOW + 30))
    job = make_job(rollout=servers(1), scheduling={"backend": "none"}).with_attempt().running(step=4)
    decision = job.with_status(servers=[waiting]).decide()
    assert decision.status.servers == [waiting] and decision.requeue_after == 30
    again = job.with_status(servers=[waiting]).decide(NOW + 30)
    assert again.status.servers[0].released_until == "" and again.requeue_after == 0


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_server_that_does_not_become_whole_gives_up_its_nodes_and_is_placed_again(backend: str) -> None:
    world = World(steps=10**6)
    world.apply(rollout=servers(), scheduling={"backend": backend}, lifecycle={"strandedSeconds": 20})
    await world.until(state="Running", step=3)
    await turns(world, 6)
    before, trainer = rollouts(world), world.status.progress.step
    world.cluster.full.add("node-1")
    world.kill_pod("demo-rollout-3")
    await turns(world, 30)
    assert rollouts(world)["demo-rollout-2"] != before["demo-rollout-2"], "the part that was left is released"
    assert reasons.STRANDED in world.events() and heads(world) == ["demo-rollout-0"]
    assert world.status.progress.step > trainer + 20, "the trainers go on"
    world.cluster.full.clear()
    await turns(world, 100)
    assert heads(world) == ["demo-rollout-0", "demo-rollout-2"]
    assert world.status.attempt and world.status.attempt.number == 1


async def test_servers_that_give_up_their_nodes_at_the_same_time_do_so_in_one_event() -> None:
    world = World(steps=10**6)
    world.apply(rollout=servers(8, minReplicas=1), scheduling={"backend": "builtin"}, lifecycle={"strandedSeconds": 20})
    await world.until(state="Running", step=3)
    await turns(world, 6)
    world.cluster.full.add("node-1")
    for ordinal in range(3, 16, 2):
        world.kill_pod(f"demo-rollout-{ordinal}")
    await turns(world, 30)
    events = [o["message"] for (kind, _, _), o in world.cluster.objects.items() if kind == "Event"]
    (said,) = [text for text in events if "no node" in text]
    assert said.startswith(
        "7 servers give up the nodes of 7 pods, and are placed again: rollout server 1: demo-rollout-3 has no node; "
    )
    assert said.endswith("rollout server 5: demo-rollout-11 has no node; and 2 more")


def calls(replicas: int) -> int:
    """Function calls of the decision that starts so many servers."""
    job = make_job(rollout=servers(replicas), scheduling={"backend": "none"}).with_attempt().running()
    fresh = template_hash(pod_template(META, job.spec, "rollout"))
    there: dict[str, Any] = {"phase": "Running", "ready": True, "running": True, "node": "n", "ip": "10.1.0.1"}
    for i in range(2 * replicas):
        pod = Pod(name=f"demo-rollout-{i}", uid=f"r{i}", role="rollout", ordinal=i, template_hash=fresh, **there)
        report = Report(pod=pod.name, pod_uid=pod.uid, boot_id=f"b{i}", attempt=1, state="running")
        job = replace(job, pods=(*job.pods, pod), reports=job.reports | {pod.name: report})
    profile, snapshot = Profile(), job.snapshot()
    status = profile.runcall(decide, snapshot).status
    assert sum(len(one.parts) for one in status.servers) == 2 * replicas
    return sum(entry.callcount for entry in profile.getstats())


def test_a_decision_about_eight_times_as_many_servers_costs_about_eight_times_as_much() -> None:
    few, many = calls(16), calls(128)
    assert many < 10 * few
