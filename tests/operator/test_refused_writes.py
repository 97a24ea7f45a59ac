"""Writes that the API server refuses for a reason that lasts: a quota, a webhook, a ConfigMap that somebody made immutable. The job says once which
object, why, and what to do; asks less and less often; holds no nodes that it cannot use; and stays in its owner's hands."""

from itertools import pairwise
from typing import Any

import pytest

from rljob_api import reasons
from rljob_api.policy import JobPolicy
from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Object
from rljob_operator.model.refused_pods import lacks_pods
from rljob_operator.reconcile.refusals import FIRST, LONGEST
from simulator.crowd import Crowd
from simulator.makers import make_job
from simulator.refusing import refusing
from simulator.world import NAMESPACE, World

QUOTA = "exceeded quota: team"
WEBHOOK = "the team's webhook allows none"
EVERY_WRITE = ("create", "merge", "apply", "patch", "delete")


def admitted(world: World) -> tuple[str, str]:
    (found,) = [c for c in world.status.conditions if c.type == "Admitted"]
    return found.reason, found.message


def warnings(world: World, reason: str) -> list[Object]:
    return [o for (kind, _, _), o in world.cluster.objects.items() if kind == "Event" and o["reason"] == reason]


async def running(**changes: Any) -> World:
    world = World(steps=10**6)
    world.apply(lifecycle={"backoffSeconds": 1}, **changes)
    await world.until(state="Running", step=3)
    return world


def lose(world: World, kind: str) -> None:
    for found, namespace, name in list(world.cluster.objects):
        if found == kind and namespace == NAMESPACE:
            world.cluster.remove(world.cluster.objects[found, namespace, name])


# A child of a job that runs


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "StatefulSet"])
async def test_a_job_of_which_one_kind_is_refused_runs_on_says_so_and_can_be_suspended(kind: str) -> None:
    world = await running()
    world.cluster.refuses = refusing([kind], WEBHOOK)
    if kind == "StatefulSet":
        world.asleep = True  # its pods are orphans
    lose(world, kind)
    for _ in range(3):
        await world.turn()
    reason, message = admitted(world)
    assert reason == reasons.CHILD_REFUSED and kind in message and message.endswith(WEBHOOK)
    if kind in ("ServiceAccount", "StatefulSet"):  # its pods are replaced, or nothing can let them go
        return
    assert world.status.state == "Running" and message in world.status.message
    world.edit_spec(suspend=True)
    await world.until(state="Suspended", turns=40)
    assert world.cluster.pods(NAMESPACE) == []


async def test_what_is_refused_for_one_cause_is_one_sentence_and_one_event() -> None:
    world = World(steps=10)
    world.cluster.refuses = refusing(["ConfigMap", "StatefulSet"], QUOTA)
    world.apply(trainer={"device": "cpu", "nodes": 8})
    for _ in range(200):
        await world.turn()
    reason, message = admitted(world)
    assert reason == reasons.CHILD_REFUSED
    assert message.count(QUOTA) == 1 and message.startswith("the API server refuses ") and " more: " in message
    assert world.status.message == message
    (said,) = warnings(world, reasons.CHILD_REFUSED)
    assert (said["type"], said["message"], said["count"]) == ("Warning", message, 1)
    world.cluster.refuses = lambda verb, obj: None
    await world.until(state="Succeeded", turns=int(LONGEST) + 60)
    assert admitted(world)[0] == reasons.SPEC_ACCEPTED


async def test_a_refused_write_is_sent_less_and_less_often_whatever_wakes_the_job() -> None:
    world = await running()
    asked: list[float] = []

    def answer(verb: str, obj: Object) -> Any:
        refusal = refusing(["NetworkPolicy"], WEBHOOK)(verb, obj)
        if refusal:
            asked.append(world.now)
        return refusal

    world.cluster.refuses = answer
    lose(world, "NetworkPolicy")
    began = world.now
    for _ in range(600):
        world.enqueue((NAMESPACE, "demo"), 0.0)
        await world.turn()
    waits = [b - a for a, b in pairwise(asked)]
    assert waits[0] >= FIRST and waits == sorted(waits) and max(waits) <= LONGEST + 1
    assert len(asked) <= 4 + (world.now - began) / LONGEST


async def test_a_write_that_was_refused_is_sent_at_once_when_there_is_something_else_to_write() -> None:
    world = World(steps=10)
    bad = {"tolerations": [{"key": "bad"}]}

    def answer(verb: str, obj: Object) -> Any:
        pod = obj.get("spec", {}).get("template", {}).get("spec", {})
        is_bad = obj["kind"] == "StatefulSet" and {"key": "bad"} in pod.get("tolerations", ())
        return refusing(["StatefulSet"], WEBHOOK)(verb, obj) if is_bad else None

    world.cluster.refuses = answer
    world.apply(trainer={"device": "cpu", "nodes": 2, "template": bad})
    for _ in range(100):
        await world.turn()
    assert WEBHOOK in world.status.message
    world.edit_spec(trainer={"device": "cpu", "nodes": 2})
    await world.until(state="Running", turns=6)


# Pods that are not deleted, or not let go


async def test_a_pod_whose_deletion_is_refused_is_named_and_keeps_no_other_from_being_deleted() -> None:
    world = await running(rollout={"replicas": 1, "sampling": {"maxTokens": 8}})
    world.cluster.refuses = refusing(["Pod"], WEBHOOK, ["delete"], "demo-trainer-0")
    world.launcher(0).fail("application", "ValueError", world.now)
    world.edit_spec(trainer={"device": "cpu", "nodes": 2, "template": {"labels": {"a": "b"}}})
    uids = {p["metadata"]["name"]: p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)}
    for _ in range(30):
        await world.turn()
    now = {p["metadata"]["name"]: p["metadata"]["uid"] for p in world.cluster.pods(NAMESPACE)}
    assert {name for name in uids if uids[name] == now[name]} <= {"demo-trainer-0", "demo-rollout-0"}
    assert "the API server refuses the deletion of Pod demo-trainer-0: " + WEBHOOK in world.status.message
    world.cluster.refuses = lambda verb, obj: None
    await world.until(state="Running", attempt=2, turns=int(LONGEST) + 20)


async def test_a_claim_whose_deletion_is_refused_is_named_and_keeps_no_other_from_being_deleted() -> None:
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    rollout = {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": agent}
    world = World(steps=10**6, policy=JobPolicy(agent_sandbox=True))
    world.apply(rollout=rollout, environments=[{"name": "python", "replicas": 3}])
    await world.until(state="Running", step=3)
    world.cluster.refuses = refusing(["SandboxClaim"], WEBHOOK, ["delete"], "demo-sandbox0-0")
    before = {key: obj["metadata"]["uid"] for key, obj in world.cluster.objects.items() if key[0] == "SandboxClaim"}
    world.edit_spec(environments=[{"name": "python", "replicas": 3, "template": {"image": "docker.io/library/b:1"}}])
    world.edit_spec(suspend=True)
    for _ in range(40):
        await world.turn()
    after = {key: obj["metadata"]["uid"] for key, obj in world.cluster.objects.items() if key[0] == "SandboxClaim"}
    assert {name for _, _, name in before.keys() & after.keys()} == {"demo-sandbox0-0"}
    assert admitted(world)[0] == reasons.CHILD_REFUSED
    assert f"the API server refuses the deletion of SandboxClaim demo-sandbox0-0: {WEBHOOK}" in world.status.message
    world.cluster.refuses = lambda verb, obj: None
    await world.until(state="Suspended", turns=int(LONGEST) + 20)


async def test_a_finished_job_names_the_child_whose_deletion_is_refused_and_deletes_all_others() -> None:
    world = World(steps=4)
    world.cluster.refuses = refusing(["ConfigMap", "Role"], WEBHOOK, ["delete"])
    world.apply(lifecycle={"ttlSecondsAfterFinished": 0})
    await world.until(state="Succeeded")
    for _ in range(40):
        await world.turn()
    kinds = {kind for kind, namespace, _ in world.cluster.objects if namespace == NAMESPACE}
    assert {"ConfigMap", "Role"} <= kinds and kinds.isdisjoint(
        {"StatefulSet", "ServiceAccount", "RoleBinding", "Service"}
    )
    reason, message = admitted(world)
    assert reason == reasons.CHILD_REFUSED and "the deletion of ConfigMap demo" in message and message.endswith(WEBHOOK)
    world.cluster.refuses = lambda verb, obj: None
    for _ in range(int(LONGEST) + 5):
        await world.turn()
    kinds = {kind for kind, namespace, _ in world.cluster.objects if namespace == NAMESPACE}
    assert kinds.isdisjoint({"ConfigMap", "Role"}) and admitted(world)[0] != reasons.CHILD_REFUSED


async def test_a_pod_that_becomes_ready_is_no_reason_to_send_a_refused_write_of_its_set_again() -> None:
    world = await running()
    asked: list[float] = []

    def answer(verb: str, obj: Object) -> Any:
        refusal = refusing(["StatefulSet"], WEBHOOK, ["apply"], "demo-rollout")(verb, obj)
        if refusal:
            asked.append(world.now)
        return refusal

    world.cluster.refuses = answer
    world.edit_spec(rollout={"replicas": 3, "sampling": {"maxTokens": 8}})
    for ready in range(int(FIRST)):
        world.cluster.edit("StatefulSet", NAMESPACE, "demo-rollout")["status"] = {"readyReplicas": ready}
        await world.turn()
    assert len(asked) == 1
    world.cluster.edit("StatefulSet", NAMESPACE, "demo-rollout")["metadata"]["generation"] += 1
    await world.turn()
    await world.turn()
    assert len(asked) == 2, "somebody has changed its spec"


async def test_a_gang_of_which_one_pod_may_not_be_let_go_gives_its_nodes_back() -> None:
    crowd = Crowd({"a": 1, "b": 1, "c": 1})
    crowd.cluster.refuses = refusing(["Pod"], WEBHOOK, ["patch"], "old-trainer-1")
    crowd.apply("old", trainers=2, lifecycle={"strandedSeconds": 30})
    await crowd.turns(10)
    assert len(crowd.on_nodes("old")) == 2
    assert f"refuses Pod old-trainer-1: {WEBHOOK}" in crowd.status("old").message
    crowd.apply("young", trainers=1)
    await crowd.turns(45)
    assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("young"))) == (0, 2)


# Nodes


async def test_a_job_whose_pods_are_refused_holds_no_nodes() -> None:
    crowd = Crowd({"a": 1, "b": 1})
    crowd.cluster.refuses = refusing(["StatefulSet"], QUOTA, name="old")
    crowd.apply("old", trainers=1)
    await crowd.turns(4)
    crowd.apply("young", trainers=1)
    await crowd.turns(10)
    assert len(crowd.on_nodes("young")) == 2
    crowd.cluster.refuses = lambda verb, obj: None
    crowd.delete("young")
    await crowd.turns(int(LONGEST) + 10)
    assert len(crowd.on_nodes("old")) == 2


async def test_a_gang_that_runs_no_more_and_has_a_refused_child_gives_its_nodes_back() -> None:
    crowd = Crowd({"a": 1, "b": 1})
    crowd.apply("old", trainers=1, lifecycle={"strandedSeconds": 30})
    await crowd.turns(6)
    crowd.cluster.refuses = refusing(["Role"], QUOTA, name="old")
    for key in [key for key in crowd.cluster.objects if key[0] == "Role"]:
        crowd.cluster.remove(crowd.cluster.objects[key])
    crowd.apply("young", trainers=1)
    await crowd.turns(50)
    assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("young"))) == (0, 2)
    assert QUOTA in crowd.status("old").message


@pytest.mark.parametrize(
    ("role", "there", "opened", "asks"),
    [
        ("trainer", 1, False, False),
        ("trainer", 1, True, True),
        ("rollout", 0, False, False),
        ("rollout", 1, False, True),
        ("rollout", 3, False, True),
        ("worker", 0, False, True),
    ],
)
def test_a_job_asks_for_no_nodes_if_a_quota_refuses_a_pod_that_its_gang_needs(
    role: str, there: int, opened: bool, asks: bool
) -> None:
    """What a gang can do without is no reason to give up the others, nor is anything to a gang that runs."""
    rollout = {"replicas": 4, "minReplicas": 1, "sampling": {"maxTokens": 8}}
    job = make_job(nodes=2, scheduling={"backend": "builtin"}, rollout=rollout)
    job = job.with_attempt().running(step=3) if opened else job.with_pods()
    pods = [Pod(name=f"demo-rollout-{i}", uid=f"r-{i}", role="rollout", ordinal=i) for i in range(4)]
    pods = [pod for pod in (*job.pods, *pods) if pod.role != role or pod.ordinal < there]
    snapshot = job.having(pods=tuple(pods), uncreated={role: QUOTA}).snapshot()
    assert lacks_pods(snapshot) == (not asks)


# What somebody has made immutable


async def test_a_control_message_that_was_made_immutable_is_made_again() -> None:
    world = await running()
    world.cluster.edit("ConfigMap", NAMESPACE, "demo-control")["immutable"] = True
    world.edit_spec(suspend=True)
    await world.until(state="Suspended", turns=40)
    assert not world.cluster.objects["ConfigMap", NAMESPACE, "demo-control"].get("immutable")


async def test_a_report_that_was_made_immutable_is_made_again_before_the_attempt_counts_as_stalled() -> None:
    world = await running()
    world.cluster.edit("ConfigMap", NAMESPACE, "demo-trainer-0-report")["immutable"] = True
    step = world.status.progress.step
    await world.until(state="Running", step=step + 5, turns=20)
    assert world.status.attempt and world.status.attempt.number == 1


async def test_a_policy_that_makes_each_config_map_immutable_is_named_and_not_fought() -> None:
    world = World(steps=10)
    create = world.cluster.create

    async def freezing(obj: Object) -> Object:
        return await create(obj | ({"immutable": True} if obj["kind"] == "ConfigMap" else {}))

    world.cluster.create = freezing  # type: ignore[method-assign]
    world.apply()
    await world.turn()
    before = len(world.cluster.writes)
    for _ in range(120):
        await world.turn()
    assert "immutable" in admitted(world)[1] and "exempt" in admitted(world)[1]
    made = [w for w in world.cluster.writes[before:] if w.startswith(("create ConfigMap", "delete ConfigMap"))]
    kinds = sum(key[0] == "ConfigMap" for key in world.cluster.objects)
    assert len(made) <= 2 * kinds * 5, "a loop"
    world.cluster.create = create  # type: ignore[method-assign]
    await world.until(state="Succeeded", turns=int(LONGEST) + 60)


async def test_a_token_that_was_made_immutable_is_replaced_as_ever() -> None:
    """Secrets are never written twice: a new value is a Secret of its own."""
    world = await running()
    secret = next(key for key in world.cluster.objects if key[0] == "Secret")
    world.cluster.edit(*secret)["immutable"] = True
    world.cluster.remove(world.cluster.objects[secret])
    world.kill_pod("demo-rollout-0")
    await world.until(state="Running", attempt=2, turns=60)
    assert sum(key[0] == "Secret" for key in world.cluster.objects) == 1


async def test_a_status_that_is_refused_is_an_event() -> None:
    world = await running()
    world.cluster.refuses = refusing(["RLJob"], WEBHOOK, ["replace"])
    for _ in range(20):
        await world.turn()
    (said,) = warnings(world, reasons.STATUS_REFUSED)
    assert said["message"].startswith("the API server refuses the job's status: ") and WEBHOOK in said["message"]
    world.cluster.refuses = lambda verb, obj: None
    await world.until(state="Running", step=world.status.progress.step + 5)
