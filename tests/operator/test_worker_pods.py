"""Pods that run a job's agent: made, replaced, scaled, suspended and counted with it, and no part of its gang."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names
from rljob_api.backends import BACKENDS, BackendName
from rljob_api.protocol import Failure, Report
from rljob_operator.policies.decide import Decision
from rljob_operator.policies.progress import failure_sentence
from rljob_operator.render import render
from rljob_operator.render.template import pod_template, template_hash
from rljob_operator.schedulers import SCHEDULERS
from rljob_operator.times import stamp
from simulator.counted import counted
from simulator.crowd import Crowd
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, NOW, Job, make_job
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

SCALABLE = sorted(name for name, backend in BACKENDS.items() if backend.scalable)


def working(replicas: int = 2, **workers: Any) -> dict[str, Any]:
    """spec.rollout with an agent in pods."""
    own = {"replicas": replicas, "template": {"resources": {"requests": {"cpu": "2"}}}} | workers
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16, "workers": own}
    return {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": agent}


def pods(world: World, role: str) -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith(f"demo-{role}-")}


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_job_with_workers_lives_as_one_without(backend: BackendName) -> None:
    found = await live(World(steps=12), scheduling={"backend": backend}, rollout=working())
    assert end(found) == end(await live(World(steps=12), scheduling={"backend": backend}))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_an_operator_killed_after_a_write_changes_nothing(backend: BackendName) -> None:
    await kill_after_writes(every=11, scheduling={"backend": backend}, rollout=working())


async def test_a_lost_worker_is_replaced_alone_and_the_attempt_goes_on() -> None:
    world = World(steps=400)
    world.apply(rollout=working())
    await world.until(state="Running", step=3)
    assert world.status.workers.text == "2/2" and world.status.pools == {}
    assert world.control and world.control.service_port == names.service_port(1)
    before, trainers = pods(world, "worker"), pods(world, "trainer")
    world.kill_pod("demo-worker-1")
    await world.until(step=world.status.progress.step + 4)
    assert pods(world, "worker").keys() == before.keys() and pods(world, "worker") != before
    assert pods(world, "trainer") == trainers and world.status.attempt and world.status.attempt.number == 1


def test_an_attempt_opens_before_there_is_any_worker_and_says_how_many_it_waits_for() -> None:
    job = make_job(rollout=working()).with_pods().reported()
    opened = job.next().attempt
    assert opened and {m.role for m in opened.members} == {"trainer"}
    waiting = job.with_attempt().running(phase="waiting").with_rollout(ready=True)
    assert waiting.next().message == "waiting for rollouts, 1/1 answer, workers, 0/2 answer"
    stalled = replace(waiting, status=waiting.next()).having(heartbeat_age=1800.0).next().attempt
    assert stalled and stalled.failure
    assert stalled.failure.message.endswith("of which 1 answer, and workers, of which 0/2 do")
    lacks = job.with_attempt().running(phase="loading", started_from=None, awaiting="waiting for a worker")
    assert lacks.next().message == "attempt 1 is starting; waiting for a worker"
    stalled = lacks.having(heartbeat_age=1800.0).next().attempt
    assert (
        stalled
        and stalled.failure
        and stalled.failure.message.endswith("while loading at step 1: waiting for a worker")
    )


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_workers_are_scaled_without_a_restart(backend: BackendName) -> None:
    world = World(steps=40)
    world.apply(rollout=working(1), scheduling={"backend": backend})
    await world.until(state="Running", step=2)
    for replicas in (4, 2):
        world.edit_spec(rollout=working(replicas))
        for _ in range(4):
            await world.turn()
        assert sorted(pods(world, "worker")) == [names.pod("demo", "worker", i) for i in range(replicas)]
        assert world.status.workers.text == f"{replicas}/{replicas}" and "next attempt" not in world.status.message
    await world.until(state="Succeeded", turns=80)
    assert world.status.attempt and (world.status.attempt.number, world.status.restarts.total) == (1, 0)


async def test_an_agent_moves_into_pods_and_out_of_them_with_the_next_attempt() -> None:
    world = World(steps=400)
    without = working()
    del without["agent"]["workers"]
    world.apply(rollout=without)
    await world.until(state="Running", step=2)
    for number, (rollout, there) in enumerate([(working(), 2), (without, 0)], start=2):
        world.edit_spec(rollout=rollout)
        await world.until(step=world.status.progress.step + 2)
        assert len(pods(world, "worker")) == 2 - there and "next attempt" in world.status.message
        world.request(f"n{number}", "restart")
        await world.until(state="Running", attempt=number)
        assert len(pods(world, "worker")) == there


async def test_a_suspended_job_has_no_workers_and_a_resumed_one_has_them_again() -> None:
    world = World(steps=400)
    world.apply(rollout=working())
    await world.until(state="Running", step=3)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert pods(world, "worker") == {} and world.status.workers.text == "-"
    world.request("n2", "resume")
    await world.until(state="Running")
    assert len(pods(world, "worker")) == 2


async def test_metrics_count_them() -> None:
    world = World(steps=400)
    world.apply(rollout=working())
    await world.until(state="Running", step=2)
    assert [s.value for s in samples_of(world) if s.name == "rljob_job_ready_workers"] == [2.0]


async def test_the_gang_waits_for_no_worker_and_holds_no_place_for_one() -> None:
    """The operator leaves the workers to the cluster's scheduler."""
    crowd = Crowd({"a": 5})
    crowd.apply("demo", trainers=2, rollout=working())
    await crowd.turns(6)
    assert set(crowd.on_nodes("demo")) >= {"demo-trainer-0", "demo-trainer-1", "demo-rollout-0"}
    placement = crowd.status("demo").placement
    assert placement and placement.requests.keys() == {"trainer", "rollout"}
    assert {x.pod for x in placement.assignments} == {"demo-trainer-0", "demo-trainer-1", "demo-rollout-0"}


def replicas(crowd: Crowd, job: str) -> int:
    """That the workers' StatefulSet of a job asks for."""
    return int(crowd.cluster.objects[("StatefulSet", NAMESPACE, names.gang(job, "worker"))]["spec"]["replicas"])


async def test_a_job_that_waits_for_nodes_has_no_workers_on_them_and_is_not_stranded() -> None:
    crowd = Crowd({"a": 4})
    crowd.apply("waiting", trainers=4, lifecycle={"strandedSeconds": 20}, rollout=working())
    for _ in range(50):
        await crowd.turn()
        status = crowd.status("waiting")
        assert crowd.on_nodes("waiting") == {} and not status.stranded_since
    assert replicas(crowd, "waiting") == 0 and status.workers.text == "0/2"
    crowd.apply("small", trainers=2)
    await crowd.turns(5)
    assert len(crowd.on_nodes("small")) == 3, "whoever waits takes no room from others"


@pytest.mark.parametrize("lingering", [False, True])
async def test_a_preempted_job_leaves_with_its_workers_and_comes_back_with_them(lingering: bool) -> None:
    crowd = Crowd({"a": 4, "b": 2}, lingering=lingering)
    crowd.apply("low", trainers=3, rollout=working())
    await crowd.turns(8)
    before = crowd.on_nodes("low").keys()
    assert len(before) == 6, "the cluster is full"
    crowd.apply("high", trainers=3, priority=10)
    if lingering:
        await crowd.turns(10)
        preemption = crowd.status("low").preemption
        assert preemption and not preemption.released and replicas(crowd, "low") == 0
        crowd.lingering = False
    await crowd.turns(12)
    preemption = crowd.status("low").preemption
    assert preemption and preemption.released
    assert len(crowd.on_nodes("high")) == 4 and crowd.on_nodes("low") == {}
    crowd.delete("high")
    await crowd.turns(20)
    assert crowd.on_nodes("low").keys() == before and crowd.status("low").preemption == preemption


async def test_room_that_workers_hold_is_free_for_the_job_that_theirs_leaves_for() -> None:
    crowd = Crowd({"a": 4})
    crowd.apply("low", trainers=1, rollout=working())
    await crowd.turns(8)
    assert len(crowd.on_nodes("low")) == 4
    crowd.apply("high", trainers=3, priority=10)
    await crowd.turns(20)
    assert len(crowd.on_nodes("high")) == 4 and crowd.on_nodes("low") == {}


def of_workers(job: Job, decision: Decision) -> int:
    """Replicas of the workers' StatefulSet."""
    sets = {o["metadata"]["name"]: o for o in render(job.snapshot(), decision.status) if o["kind"] == "StatefulSet"}
    return int(sets[names.gang("demo", "worker")]["spec"]["replicas"])


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_workers_are_made_with_the_gangs_first_node_or_where_a_group_is_admitted_with_all_its_pods(
    backend: BackendName,
) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    job = make_job(scheduling={"backend": backend} | queue, rollout=working()).having(fresh_token="t")
    there = job.with_pods()
    pending = job.with_pods(node="", running=False, ready=False, ip="", phase="Pending")
    found = {name: of_workers(one, one.decide()) for name, one in (("there", there), ("pending", pending))}
    assert found == {"there": 2, "pending": 0 if BACKENDS[backend].scalable else 2}


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_a_gang_of_which_only_workers_are_on_nodes_keeps_its_pods(backend: BackendName) -> None:
    """An autoscaler brings up nodes for the pods that are pending: it would lose sight of them."""
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    job = make_job(scheduling={"backend": backend} | queue, rollout=working())
    pending = job.with_pods(node="", running=False, ready=False, ip="", unschedulable="Insufficient nvidia.com/gpu")
    assert job.spec.workers
    (first, *_) = job.with_pods().pods
    fresh = template_hash(pod_template(META, job.spec, "worker"))
    worker = replace(first, name="demo-worker-0", uid="w", role="worker", node="cpu-1", template_hash=fresh)
    one = replace(pending, pods=(*pending.pods, worker))
    assert one.next().stranded_since == ""
    since = stamp(NOW - one.spec.lifecycle.stranded_seconds - 1)
    decision = one.with_status(stranded_since=since).decide()
    assert decision.delete == () and decision.status.released_until == "" == decision.status.stranded_since
    stranded = replace(one, pods=(replace(pending.pods[0], node="node-1"), *one.pods[1:]))
    decision = stranded.with_status(stranded_since=since).decide()
    if not BACKENDS[backend].assigns_nodes:  # the operator's own scheduler says itself what it lacks
        assert {pod.name for pod in decision.delete} == {"demo-trainer-0", "demo-worker-0"}


@pytest.mark.parametrize("backend", SCHEDULERS)
def test_no_scheduler_waits_for_workers(backend: BackendName) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    spec = make_job(scheduling={"backend": backend} | queue, rollout=working(3)).spec
    settings = SCHEDULERS[backend].pod_settings(META, spec, "worker")
    assert settings.annotations.get("kueue.x-k8s.io/pod-group-total-count", "6") == "6"
    groups = SCHEDULERS[backend].objects(META, spec)
    assert not groups or counted(backend, groups) == {"trainer": 2, "rollout": 1}


def test_kai_makes_each_worker_a_group_of_its_own() -> None:
    """A subgroup of the gang's would have no member that has to be there."""
    spec = make_job(scheduling={"backend": "kai", "queue": "team"}, rollout=working()).spec
    settings = SCHEDULERS["kai"].pod_settings(META, spec, "worker")
    assert (settings.labels, settings.annotations) == ({"kai.scheduler/queue": "team"}, {})


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_their_pods_are_as_restricted_as_all_others_and_have_no_gpu(device: str) -> None:
    spec = make_job(trainer={"device": device}, rollout=working(template={"image": "own:1"})).spec
    assert spec
    pod = pod_template(META, spec, "worker")["spec"]
    (container,) = pod["containers"]
    assert (container["name"], container["image"]) == ("worker", "own:1")
    assert (
        container["command"] == ["python", "-m", "rljob_trainer", "worker", "worker"] and "resources" not in container
    )
    assert container["readinessProbe"]["httpGet"]["port"] == container["ports"][0]["containerPort"]
    assert names.ENV_ROLLOUT_TOKEN in [entry["name"] for entry in container["env"]]
    trainer = pod_template(META, spec, "trainer")["spec"]
    assert pod["securityContext"] == trainer["securityContext"] and "schedulingGates" not in pod
    assert container["securityContext"] == trainer["containers"][0]["securityContext"]


def test_a_failure_that_a_worker_reports_is_named_once() -> None:
    job = make_job(rollout=working()).with_attempt().running().with_rollout()
    worker = replace(job.pods[-1], name="demo-worker-0", uid="worker-0", role="worker", ready=False)
    failure = Failure(kind="application", exception="exit code 3", message="it ended", time=5.0)
    report = Report(pod="demo-worker-0", pod_uid="worker-0", boot_id="b", failure=failure)
    broken = replace(job, pods=(*job.pods, worker), reports=job.reports | {"demo-worker-0": report})
    decision = broken.decide()
    last = decision.status.last_rollout_failure
    assert last and failure_sentence(last) == "demo-worker-0: exit code 3: it ended"
    assert decision.status.attempt and decision.status.attempt.command == "run"
    assert not [e for e in broken.having(status=decision.status).decide().events if "it ended" in e.message]
