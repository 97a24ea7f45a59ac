"""Servers of several pods: they start and end as a whole, alone."""

from cProfile import Profile
from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_api.protocol import Failure, Report
from rljob_api.status_parts import Preemption
from rljob_operator.cache.pods import Pod
from rljob_operator.policies.decide import decide
from rljob_operator.render.template import pod_template, template_hash
from rljob_operator.times import stamp
from simulator.makers import META, make_job
from simulator.parts import Part
from simulator.replicas import BACKENDS, groups, heads, part, rollouts, servers, serving, turns
from simulator.world import NAMESPACE, World


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
