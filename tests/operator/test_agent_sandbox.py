"""Sandboxes by the objects of kubernetes-sigs/agent-sandbox: the claims that a job holds, and how their pods are replaced, renewed and given back.
Its controllers are those of simulator/agent_sandbox.py."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_operator.cache.pods import is_of_a_job, parse_pod
from rljob_operator.kube.api import Object
from rljob_operator.policies.pods import LEAST_SECONDS
from rljob_operator.reconcile.writer import waves
from rljob_operator.render import render
from rljob_operator.render.template import pod_template
from rljob_operator.times import stamp
from simulator.agent_sandbox import waiting
from simulator.life import end, kill_after_writes, live
from simulator.makers import META, NOW, make_job
from simulator.world import NAMESPACE, World

AGENT = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
ROLLOUT = {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": AGENT}
POLICY = JobPolicy(agent_sandbox=True)


def sandboxed(replicas: int = 2, **environment: Any) -> dict[str, Any]:
    return {"rollout": ROLLOUT, "environments": [{"name": "python", "replicas": replicas} | environment]}


def world(steps: int = 400) -> World:
    return World(steps=steps, policy=POLICY)


def objects(of: World, *kinds: str) -> list[Object]:
    return [obj for (kind, _, _), obj in of.cluster.objects.items() if kind in kinds]


def held(of: World) -> dict[str, Object]:
    """Pods that claims have, by the ordinal of the claim."""
    pods = [pod for pod in of.cluster.pods(NAMESPACE) if names.ANNOTATION_CLAIM in pod["metadata"]["annotations"]]
    return {pod["metadata"]["annotations"][names.ANNOTATION_CLAIM]: pod for pod in pods}


def uids(of: World) -> dict[str, str]:
    return {ordinal: pod["metadata"]["uid"] for ordinal, pod in held(of).items()}


def end_helper(of: World, ordinal: str, code: int = 0) -> None:
    """An agent has given it back, and the kubelet starts its container again."""
    of.elapse(LEAST_SECONDS + 1)
    status = of.cluster.edit("Pod", NAMESPACE, held(of)[ordinal]["metadata"]["name"])["status"]
    last = {"terminated": {"reason": "OOMKilled" if code else "Completed", "exitCode": code}}
    status["containerStatuses"] = [{"name": "sandbox", "state": {"running": {}}, "lastState": last}]


async def running(of: World, replicas: int = 2, **changes: Any) -> World:
    of.apply(**sandboxed(replicas), **changes)
    await of.until(state="Running", step=3)
    return of


async def test_a_job_lives_as_one_whose_sandboxes_are_of_a_statefulset() -> None:
    found = await live(world(12), **sandboxed())
    assert end(found) == end(await live(World(steps=12), **sandboxed()))


async def test_an_operator_killed_after_a_write_changes_nothing() -> None:
    await kill_after_writes(every=11, policy=POLICY, **sandboxed())


async def test_an_environment_has_a_claim_for_each_pod_and_some_more_wait_that_are_not_the_jobs() -> None:
    found = await running(world(), 5)
    await found.until(step=found.status.progress.step + 3)
    assert held(found).keys() == {"0", "1", "2", "3", "4"} and len(waiting(found.cluster)) == 2
    assert found.status.environments["python"].text == "5/5"
    assert found.control and {one.pod_uid for one in found.control.sandboxes["python"]} == set(uids(found).values())
    assert not [sts for sts in objects(found, "StatefulSet") if "sandbox" in sts["metadata"]["name"]]
    claims = objects(found, "SandboxClaim")
    assert {claim["metadata"]["name"] for claim in claims} == {f"demo-sandbox0-{i}" for i in range(5)}
    (pool,), (template,) = objects(found, "SandboxWarmPool"), objects(found, "SandboxTemplate")
    assert {claim["spec"]["warmPoolRef"]["name"] for claim in claims} == {pool["metadata"]["name"]}
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]


@pytest.mark.parametrize("code", [0, 137])
async def test_one_that_was_used_is_given_back_with_its_claim_and_another_that_waited_takes_its_place(
    code: int,
) -> None:
    found = await running(world())
    await found.until(step=found.status.progress.step + 2)
    before, waited = uids(found), {pod["metadata"]["uid"] for pod in waiting(found.cluster)}
    end_helper(found, "1", code)
    await found.until(step=found.status.progress.step + 8)
    after = uids(found)
    assert after["0"] == before["0"] and after["1"] in waited and after.keys() == before.keys()
    assert len(waiting(found.cluster)) == 1
    assert found.status.attempt and found.status.attempt.number == 1 and found.status.restarts.total == 0


async def test_a_used_one_is_nobodys_until_its_claim_has_another_pod() -> None:
    found = await running(world())
    used = uids(found)["0"]
    end_helper(found, "0")
    for _ in range(8):
        await found.turn()
        assert found.control and used not in {one.pod_uid for one in found.control.sandboxes["python"]}
    assert found.control and len(found.control.sandboxes["python"]) == 2


async def test_claims_that_somebody_deletes_are_made_again() -> None:
    found = await running(world())
    for claim in objects(found, "SandboxClaim", "SandboxWarmPool", "SandboxTemplate"):
        found.cluster.remove(claim)
    await found.until(step=found.status.progress.step + 8)
    assert held(found).keys() == {"0", "1"} and found.status.environments["python"].text == "2/2"


async def test_none_is_left_when_the_job_is_suspended_or_ends_whoever_was_operator_when_they_were_made() -> None:
    found = await running(world(40))
    found.restart_operator()
    found.request("n1", "suspend")
    await found.until(state="Suspended")
    for _ in range(6):
        await found.turn()
    assert not objects(found, "SandboxClaim", "SandboxWarmPool", "SandboxTemplate", "Sandbox") and not held(found)
    found.request("n2", "resume")
    await found.until(state="Running")
    assert len(held(found)) == 2
    await found.until(state="Succeeded")
    for _ in range(6):
        await found.turn()
    assert not objects(found, "SandboxClaim", "SandboxWarmPool", "SandboxTemplate", "Sandbox") and not held(found)


async def test_fewer_are_wanted_from_the_next_attempt_on_and_the_others_stay() -> None:
    found = await running(world(), 3)
    before = uids(found)
    found.edit_spec(**sandboxed(1))
    await found.until(step=found.status.progress.step + 4)
    assert uids(found) == before
    found.launcher(1).fail("application", "ValueError", found.now)
    await found.until(state="Running", attempt=2, step=3)
    await found.until(step=found.status.progress.step + 6)
    assert uids(found) == {"0": before["0"]} and len(waiting(found.cluster)) == 1


async def test_no_claim_gets_a_pod_of_a_former_template() -> None:
    found = await running(world())
    (old,) = objects(found, "SandboxWarmPool")
    found.request("n1", "suspend")
    await found.until(state="Suspended")
    found.edit_spec(**sandboxed(2, template={"image": "docker.io/library/python:3.13"}))
    found.request("n2", "resume")
    await found.until(state="Running", attempt=2)
    (new,) = objects(found, "SandboxWarmPool")
    assert new["metadata"]["name"] != old["metadata"]["name"] and len(objects(found, "SandboxTemplate")) == 1
    assert {pod["spec"]["containers"][0]["image"] for pod in held(found).values()} == {"docker.io/library/python:3.13"}


async def test_a_changed_template_is_that_of_the_next_attempt_which_renews_all() -> None:
    found = await running(world())
    before = uids(found)
    found.edit_spec(**sandboxed(2, template={"image": "docker.io/library/python:3.13"}))
    end_helper(found, "0")
    await found.until(step=found.status.progress.step + 8)
    images = {ordinal: pod["spec"]["containers"][0]["image"] for ordinal, pod in held(found).items()}
    assert uids(found)["0"] != before["0"] and "docker.io/library/python:3.13" not in images.values()
    found.launcher(1).fail("application", "ValueError", found.now)
    await found.until(state="Running", attempt=2, step=3)
    assert {p["spec"]["containers"][0]["image"] for p in held(found).values()} == {"docker.io/library/python:3.13"}
    assert len(objects(found, "SandboxWarmPool")) == len(objects(found, "SandboxTemplate")) == 1


async def test_a_spec_that_became_invalid_takes_none_away_from_the_attempt_that_runs() -> None:
    found = await running(world())
    before = uids(found)
    found.edit_spec(environments=[{"name": "python", "replicas": 0}])
    await found.until(step=found.status.progress.step + 6)
    assert uids(found) == before


async def test_when_the_administrator_turns_to_it_the_statefulsets_pods_go_and_claims_take_their_places() -> None:
    found = World(steps=400)
    await running(found)
    found.policy = POLICY
    found.restart_operator()
    await found.until(step=found.status.progress.step + 8)
    assert not [
        pod for pod in found.cluster.pods(NAMESPACE) if pod["metadata"]["name"] == "demo-sandbox0-0" and not held(found)
    ]
    assert held(found).keys() == {"0", "1"}


def rendered(**changes: Any) -> list[Object]:
    job = make_job(**sandboxed(3), **changes).having(fresh_token="t", policy=POLICY).with_pods()
    return render(job.snapshot(), job.next())


def test_the_template_is_that_of_a_statefulset_with_its_limits_and_policies() -> None:
    found = {(o["kind"], o["metadata"]["name"]): o for o in rendered()}
    (template,) = (o for (kind, _), o in found.items() if kind == "SandboxTemplate")
    expected = pod_template(META, make_job(**sandboxed(3)).spec, "sandbox0")
    assert template["spec"] == {"podTemplate": expected, "networkPolicyManagement": "Unmanaged"}
    assert found["NetworkPolicy", "demo-sandboxes"]["spec"]["policyTypes"] == ["Egress"]
    assert expected["metadata"]["labels"][names.LABEL_SANDBOX] == "true"
    assert all(o["metadata"]["ownerReferences"][0]["uid"] == META.uid for o in found.values())


def test_no_pod_of_theirs_starts_before_its_template_and_what_keeps_programs_from_the_network() -> None:
    *before, last = waves(rendered(scheduling={"backend": "none"}))
    kinds = {o["kind"] for o in last}
    assert kinds == {"SandboxWarmPool", "SandboxClaim", "StatefulSet"}
    assert {"NetworkPolicy", "ServiceAccount", "SandboxTemplate"} <= {o["kind"] for wave in before for o in wave}


def test_the_longest_name_of_a_job_leaves_room_for_what_agent_sandbox_adds() -> None:
    long = make_job(**sandboxed(1)).having(job=replace_name("j" * names.MAX_JOB_NAME), policy=POLICY).with_pods()
    (pool,) = (o for o in render(long.snapshot(), long.next()) if o["kind"] == "SandboxWarmPool")
    assert len(f"{pool['metadata']['name']}-abcde") <= 63


def replace_name(name: str) -> Any:
    return META.model_copy(update={"name": name})


POD: Object = {
    "metadata": {
        "name": "demo-sandbox0-1a2b3-x7k2p",
        "uid": "u",
        "labels": names.labels("demo", "sandbox0"),
        "annotations": {names.ANNOTATION_CLAIM: "3"},
        "ownerReferences": [{"kind": "Sandbox", "name": "demo-sandbox0-1a2b3-x7k2p", "controller": True}],
    },
    "spec": {},
}


@pytest.mark.parametrize(
    ("changed", "is_ours"),
    [
        ({}, True),
        ({"annotations": {}}, False),
        ({"annotations": {names.ANNOTATION_CLAIM: "x"}}, False),
        ({"labels": names.labels("demo", "rollout")}, False),
        ({"labels": names.labels("other", "sandbox0")}, False),
        ({"labels": {}}, False),
        ({"ownerReferences": []}, False),
        ({"ownerReferences": [{"kind": "Sandbox", "name": "demo-sandbox0-1a2b3-x7k2p"}]}, False),
    ],
)
def test_a_pod_is_the_jobs_if_its_claim_has_written_into_it(changed: Object, is_ours: bool) -> None:
    assert is_of_a_job(POD | {"metadata": POD["metadata"] | changed}) is is_ours


def test_the_claim_of_a_pod_is_read_of_it() -> None:
    pod = parse_pod(POD)
    assert (pod.role, pod.ordinal, pod.claim) == ("sandbox0", 3, "demo-sandbox0-3")
    own = parse_pod(
        {"metadata": {"name": "demo-sandbox0-3", "uid": "u", "labels": names.labels("demo", "sandbox0")}, "spec": {}}
    )
    assert (own.ordinal, own.claim) == (3, "")


@pytest.mark.parametrize(("age", "deleted"), [(LEAST_SECONDS - 3, False), (LEAST_SECONDS, True)])
@pytest.mark.parametrize("ended", [{"exited": "Error (exit code 1)"}, {"phase": "Failed", "failed": "Evicted"}])
def test_one_that_ends_at_once_is_given_back_some_time_after_it_was_claimed(
    ended: dict[str, Any], age: float, deleted: bool
) -> None:
    """It may have waited in the pool for long, and the next one there ends as fast."""
    job = make_job(**sandboxed(1)).with_attempt().running().with_rollout()
    pod = replace(
        job.pods[-1], name="demo-sandbox0-1a2b3-x", uid="s", role="sandbox0", ready=False, created=1.0, **ended
    )
    claim = {"metadata": {"creationTimestamp": stamp(NOW - age)}}
    job = job.having(children={("SandboxClaim", "demo-sandbox0-0"): claim})
    found = replace(job, pods=(*job.pods, replace(pod, claim="demo-sandbox0-0"))).decide()
    assert [pod.claim for pod in found.delete] == (["demo-sandbox0-0"] if deleted else [])
