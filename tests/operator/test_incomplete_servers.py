"""Servers of which pods are missing, or do not answer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rljob_api import reasons
from rljob_api.protocol import Failure, Report
from rljob_api.server_group import ServerPart
from rljob_api.status_parts import ServerStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.times import stamp
from simulator.makers import NOW, Job, make_job
from simulator.replicas import BACKENDS, heads, rollouts, servers, serving, turns
from simulator.world import World


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
