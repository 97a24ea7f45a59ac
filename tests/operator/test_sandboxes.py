"""Pods of environments: what they share with the job, and how they are replaced when they were used, whoever ended them."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names
from rljob_api.backends import BACKENDS, BackendName
from rljob_operator.cache.pods import parse_pod
from rljob_operator.policies.pods import LEAST_SECONDS, STUCK_SECONDS
from rljob_operator.render import render
from rljob_operator.render.template import pod_template
from rljob_operator.schedulers import SCHEDULERS
from simulator.counted import counted
from simulator.crowd import Crowd
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, NOW, make_job
from simulator.world import NAMESPACE, World

AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
ROLLOUT = {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": AGENT}
WITHOUT_KUEUE = sorted(name for name, backend in BACKENDS.items() if backend.scalable)
SECRET = {"secretKeyRef": {"name": names.token("demo", META.uid), "key": names.TOKEN_KEY}}


def sandboxed(replicas: int = 2, **environment: Any) -> dict[str, Any]:
    """Changes of a spec, with an environment."""
    return {"rollout": ROLLOUT, "environments": [{"name": "python", "replicas": replicas} | environment]}


def uids(world: World) -> dict[str, str]:
    """Of sandboxes, by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith("demo-sandbox0-")}


def exit_container(world: World, name: str, code: int = 0) -> None:
    """The helper ends, and the kubelet starts the container again in the same pod."""
    world.elapse(LEAST_SECONDS + 1)
    status = world.cluster.edit("Pod", NAMESPACE, name)["status"]
    last = {"terminated": {"reason": "OOMKilled" if code else "Completed", "exitCode": code}}
    status["containerStatuses"] = [{"name": "sandbox", "state": {"running": {}}, "lastState": last}]


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_job_with_sandboxes_lives_as_one_without(backend: BackendName) -> None:
    found = await live(World(steps=12), scheduling={"backend": backend}, **sandboxed())
    assert end(found) == end(await live(World(steps=12), scheduling={"backend": backend}))


async def test_an_operator_killed_after_a_write_changes_nothing() -> None:
    await kill_after_writes(every=11, **sandboxed())


@pytest.mark.parametrize("code", [0, 137])
async def test_a_sandbox_that_was_used_is_replaced_by_another_pod_and_nothing_else_moves(code: int) -> None:
    world = World(steps=400)
    world.apply(**sandboxed())
    await world.until(state="Running", step=3)
    assert world.status.environments["python"].text == "2/2" and world.status.pools == {}
    before = uids(world)
    exit_container(world, "demo-sandbox0-1", code)
    await world.until(step=world.status.progress.step + 6)
    after = uids(world)
    assert after.keys() == before.keys() and after["demo-sandbox0-1"] != before["demo-sandbox0-1"]
    assert after["demo-sandbox0-0"] == before["demo-sandbox0-0"]
    assert world.status.attempt and world.status.attempt.number == 1 and world.status.restarts.total == 0
    assert world.status.last_rollout_failure is None


async def test_the_driver_hears_of_those_that_are_free_and_of_no_second_life() -> None:
    world = World(steps=400)
    world.apply(**sandboxed(3))
    await world.until(state="Running", step=3)
    assert world.control
    free = {one.pod_uid for one in world.control.sandboxes["python"]}
    assert free == set(uids(world).values())
    assert all(one.address.endswith(f":{names.ROLLOUT_PORT}") for one in world.control.sandboxes["python"])
    taken = uids(world)["demo-sandbox0-0"]
    world.cluster.edit("Pod", NAMESPACE, "demo-sandbox0-0")["status"]["conditions"] = [
        {"type": "Ready", "status": "False"}
    ]
    await world.turn()
    assert {one.pod_uid for one in world.control.sandboxes["python"]} == free - {taken}
    assert world.status.environments["python"].text == "2/3"
    exit_container(world, "demo-sandbox0-0")
    world.cluster.edit("Pod", NAMESPACE, "demo-sandbox0-0")["status"]["conditions"] = [
        {"type": "Ready", "status": "True"}
    ]
    for _ in range(6):
        await world.turn()
        assert taken not in {one.pod_uid for one in world.control.sandboxes["python"]}
    assert len(world.control.sandboxes["python"]) == 3


async def test_none_is_left_when_the_job_is_suspended_or_ends_and_a_resumed_one_has_them_again() -> None:
    world = World(steps=30)
    world.apply(**sandboxed())
    await world.until(state="Running", step=3)
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert uids(world) == {}
    world.request("n2", "resume")
    await world.until(state="Running")
    assert len(uids(world)) == 2
    await world.until(state="Succeeded")
    await world.turn()
    assert uids(world) == {}


def test_an_image_in_which_nothing_runs_costs_few_pods() -> None:
    job = make_job(**sandboxed(1)).with_attempt().running().with_rollout()
    crashed = replace(
        job.pods[-1], name="demo-sandbox0-0", uid="s", role="sandbox0", ready=False, exited="Error (exit code 1)"
    )
    young = replace(job, pods=(*job.pods, replace(crashed, created=NOW - 3)))
    decision = young.decide()
    assert decision.delete == () and decision.requeue_after == pytest.approx(LEAST_SECONDS - 3)
    old = replace(job, pods=(*job.pods, replace(crashed, created=NOW - LEAST_SECONDS)))
    assert [pod.name for pod in old.decide().delete] == ["demo-sandbox0-0"]
    leaving = replace(job, pods=(*job.pods, replace(crashed, created=1.0, deleting=True)))
    assert leaving.decide().delete == ()


def test_one_that_no_claim_can_hold_any_more_is_replaced_though_it_runs() -> None:
    job = make_job(**sandboxed(2, claimSeconds=600)).with_attempt().running().with_rollout()
    held = replace(
        job.pods[-1],
        name="demo-sandbox0-0",
        uid="s0",
        role="sandbox0",
        ready=False,
        running=True,
        unready_since=NOW - 600,
    )
    free = replace(held, name="demo-sandbox0-1", uid="s1", ready=True, unready_since=None)
    decision = replace(job, pods=(*job.pods, held, free)).decide()
    assert decision.delete == () and decision.requeue_after is not None and decision.requeue_after <= STUCK_SECONDS
    starts = replace(held, running=False, unready_since=1.0)
    assert replace(job, pods=(*job.pods, starts, free)).decide().delete == ()
    stuck = replace(held, unready_since=NOW - 600 - STUCK_SECONDS)
    assert [pod.name for pod in replace(job, pods=(*job.pods, stuck, free)).decide().delete] == ["demo-sandbox0-0"]


def test_since_when_a_pod_is_not_ready_is_read() -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "demo-sandbox0-0", "uid": "u", "labels": names.labels("demo", "sandbox0")},
        "spec": {},
    }
    found = [
        parse_pod(pod | {"status": {"conditions": [{"type": "Ready", "status": said, "lastTransitionTime": at}]}})
        for said, at in (("False", "1970-01-01T00:00:07Z"), ("True", "1970-01-01T00:00:07Z"), ("False", "soon"))
    ]
    assert [one.unready_since for one in found] == [7.0, None, None]


def test_the_message_counts_those_that_are_free_and_names_one_that_cannot_run_but_none_that_was_used() -> None:
    job = make_job(**sandboxed(3)).with_attempt().running(phase="waiting").with_rollout(ready=True)
    used = replace(
        job.pods[-1], name="demo-sandbox0-0", uid="s0", role="sandbox0", ready=False, exited="Completed (exit code 0)"
    )
    broken = replace(used, name="demo-sandbox0-1", uid="s1", exited="", running=False, waiting="ImagePullBackOff: no")
    waiting = replace(job, pods=(*job.pods, used, broken))
    said = "waiting for rollouts, 1/1 answer, sandboxes python, 0/3 free: demo-sandbox0-1: ImagePullBackOff: no"
    assert waiting.next().message == said
    stalled = replace(waiting, status=waiting.next()).having(heartbeat_age=1800.0).next().attempt
    assert stalled and stalled.failure and stalled.failure.message.endswith(", and sandboxes python, 0/3 free")


def test_they_share_nothing_with_the_job_that_a_program_could_use() -> None:
    volume = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
    given: dict[str, Any] = {
        "env": [{"name": "HF_TOKEN", "value": "secret"}],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "volumes": [volume],
        "runtimeClassName": "nvidia",
    }
    own = {"template": {"image": "any:1", "env": [{"name": "HOME", "value": "/"}]}, "runtimeClassName": "gvisor"}
    spec = make_job(**sandboxed(**own), **given).spec
    template = pod_template(META, spec, "sandbox0")
    pod = template["spec"]
    assert template["metadata"]["labels"][names.LABEL_SANDBOX] == "true"
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("demo-sandboxes", False)
    assert pod["runtimeClassName"] == "gvisor" and [v["emptyDir"] for v in pod["volumes"]] == [{}, {}]
    (container,), (helper,) = pod["containers"], pod["initContainers"]
    assert container["env"] == [{"name": "HOME", "value": "/"}] and "envFrom" not in container
    assert (container["image"], helper["image"]) == ("any:1", spec.image)
    assert {e["name"]: e["valueFrom"] for e in helper["env"]} == {
        names.ENV_POD_UID: {"fieldRef": {"fieldPath": "metadata.uid"}},
        names.ENV_ROLLOUT_TOKEN: SECRET,
    }
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    assert mounts == {names.HELPER_DIR: True, names.SANDBOX_DIR: False}
    assert container["command"][:2] == [f"{names.HELPER_DIR}/helper", f"{names.HELPER_DIR}/token"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == int(container["command"][2])
    assert container["resources"]["limits"].keys() == {"cpu", "memory", "ephemeral-storage"}


def test_their_pods_keep_the_restricted_standard() -> None:
    spec = make_job(**sandboxed()).spec
    pod, trainer = (pod_template(META, spec, role)["spec"] for role in ("sandbox0", "trainer"))
    assert pod["securityContext"] == trainer["securityContext"] and "schedulingGates" not in pod
    (of_trainer,) = (c["securityContext"] for c in trainer["containers"])
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] | {"readOnlyRootFilesystem": True} == of_trainer


def test_they_are_reached_by_the_jobs_pods_and_reach_nothing() -> None:
    job = make_job(**sandboxed()).having(fresh_token="t").with_pods()
    snapshot = job.snapshot()
    found = {(o["kind"], o["metadata"]["name"]): o for o in render(snapshot, job.next())}
    ours = {"matchLabels": {names.LABEL_JOB: "demo", names.LABEL_MANAGED_BY: "rljob"}}
    policy = found["NetworkPolicy", "demo-sandboxes"]["spec"]
    exists = {"key": names.LABEL_SANDBOX, "operator": "Exists"}
    assert policy == {"podSelector": ours | {"matchExpressions": [exists]}, "policyTypes": ["Egress"]}
    account = found["ServiceAccount", "demo-sandboxes"]
    assert account["automountServiceAccountToken"] is False and "annotations" not in account["metadata"]
    (binding,) = (o for (kind, _), o in found.items() if kind == "RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == ["demo-pods"]
    assert not [name for kind, name in found if kind == "ConfigMap" and "sandbox" in name], "they report nothing"
    without = {(o["kind"], o["metadata"]["name"]) for o in render(make_job().snapshot(), make_job().next())}
    assert not [name for _, name in without if name.startswith("demo-sandbox")]


async def test_a_job_that_waits_for_nodes_has_none_and_the_gang_waits_for_none() -> None:
    crowd = Crowd({"a": 5})
    crowd.apply("demo", trainers=2, **sandboxed())
    await crowd.turns(6)
    placement = crowd.status("demo").placement
    assert placement and placement.requests.keys() == {"trainer", "rollout"}
    crowd.apply("waiting", trainers=4, **sandboxed())
    await crowd.turns(6)
    assert crowd.on_nodes("waiting") == {}


@pytest.mark.parametrize("backend", WITHOUT_KUEUE)
def test_no_scheduler_waits_for_them(backend: BackendName) -> None:
    queue = {"queue": "team"} if "queue" in BACKENDS[backend].fields else {}
    spec = make_job(scheduling={"backend": backend} | queue, **sandboxed(3)).spec
    groups = SCHEDULERS[backend].objects(META, spec)
    assert not groups or counted(backend, groups) == {"trainer": 2, "rollout": 1}


def test_what_a_program_leaves_in_the_status_of_its_pod_is_read_of_its_container_alone() -> None:
    metadata = {"name": "demo-sandbox0-0", "uid": "u", "labels": names.labels("demo", "sandbox0")}
    statuses = [
        {"name": "mesh", "state": {"terminated": {"exitCode": 1}}},
        {"name": "sandbox", "state": {"running": {}}},
    ]
    pod = parse_pod({"metadata": metadata, "spec": {}, "status": {"containerStatuses": statuses}})
    assert (pod.role, pod.running, pod.exited) == ("sandbox0", True, "")
