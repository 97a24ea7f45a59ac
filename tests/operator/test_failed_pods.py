"""Pods that their kubelet fails: evicted, not admitted, out of memory. They are replaced at once, and the deletion is the last that says why."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rljob_api import reasons
from rljob_api.status import Restarts
from rljob_operator.cache.pods import FORGIVEN, LONGEST, REMEMBERED_SECONDS, FailedPod, FailedPods, Pod, parse_pod
from rljob_operator.times import seconds, stamp
from simulator.crowd import NAMESPACE as CROWD
from simulator.crowd import Crowd
from simulator.makers import NOW, make_job
from simulator.world import NAMESPACE, World

JOB = ("research", "demo")
FULL = "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi."


async def test_an_evicted_pod_is_named_with_the_words_of_its_kubelet_and_counts() -> None:
    world = World(steps=400)
    world.apply(lifecycle={"maxRestarts": 2, "backoffSeconds": 1})
    await world.until(state="Running", step=3)
    world.fail_pod("demo-trainer-1", "Evicted", FULL)
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and (last.reason, last.pod) == (reasons.POD_FAILED, "demo-trainer-1")
    assert (
        last.failure and last.failure.message == f"the kubelet ended pod demo-trainer-1 on node node-1: Evicted: {FULL}"
    )
    assert world.status.restarts.counted == 1
    messages = [o["message"] for (kind, _, _), o in world.cluster.objects.items() if kind == "Event"]
    assert f"attempt 1 failed (PodFailed): {last.failure.message}" in messages


async def test_a_job_whose_pods_are_evicted_again_and_again_is_given_up() -> None:
    world = World(steps=400)
    world.apply(lifecycle={"maxRestarts": 2, "backoffSeconds": 1})
    for attempt in (1, 2, 3):
        await world.until(state="Running", attempt=attempt)
        world.fail_pod("demo-trainer-0", "Evicted", FULL)
    await world.until(state="Failed")
    assert world.status.outcome_reason == reasons.REACHED_MAX_RESTARTS
    assert FULL in world.status.message


async def test_a_disrupted_pod_that_is_gone_before_anybody_looks_is_not_called_deleted() -> None:
    world = World(steps=400)
    world.apply()
    await world.until(state="Running", step=3)
    world.fail_pod("demo-trainer-1", "Terminated", "Pod was terminated.", disrupted="its node shuts down")
    await world.until(state="Running", attempt=2)
    last = world.status.last_failure
    assert last and (last.reason, world.status.restarts.counted) == (reasons.POD_DISRUPTED, 0)
    assert last.failure and last.failure.message == "pod demo-trainer-1: its node shuts down"


async def test_a_disrupted_pod_that_ran_when_it_was_last_seen_is_gone_with_its_object() -> None:
    world = World(steps=400)
    world.apply()
    await world.until(state="Running", step=3)
    status = world.cluster.edit("Pod", NAMESPACE, "demo-trainer-1")["status"]
    status["conditions"].append({"type": "DisruptionTarget", "status": "True", "message": "preempted"})
    await world.turn()
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2)
    assert world.status.last_failure and world.status.last_failure.reason == reasons.POD_DISRUPTED


async def test_restarts_in_a_row_that_do_not_count_wait_longer_each_time_but_the_first() -> None:
    world = World(steps=400, save_every=1000)
    world.apply(lifecycle={"backoffSeconds": 4})
    waits = []
    for attempt in (1, 2, 3, 4):
        await world.until(state="Running", attempt=attempt)
        world.kill_pod("demo-trainer-1")
        await world.until(state="Restarting")
        while world.status.attempt and not world.status.attempt.ended_at:
            await world.turn()
        until = world.status.restarts.not_before
        waits.append(max(0.0, seconds(until) - world.now) if until else 0.0)
    assert waits == [0.0, 4.0, 8.0, 16.0]
    assert world.status.restarts.uncounted == 4
    assert world.status.message.endswith(f"the next starts at {world.status.restarts.not_before}")


def test_an_attempt_that_has_saved_its_steps_and_a_request_to_restart_wait_for_nothing() -> None:
    job = make_job().with_status(restarts=Restarts(total=5, uncounted=5)).with_attempt(6)
    deleted = job.changing_pod(1, deleting=True, running=False).reporting(0, state="stopped", result="stopped")
    assert deleted.next().restarts == Restarts(total=6, uncounted=6, not_before=stamp(NOW + 80))
    asked = job.with_attempt(6, command="drain", reason=reasons.RESTART_REQUESTED).reported(
        state="stopped", result="drained"
    )
    assert asked.next().restarts == Restarts(total=6, uncounted=5)


async def test_a_pod_that_its_node_does_not_admit_is_let_go_there_less_and_less_often_and_says_why() -> None:
    """As with a broken GPU: the only node takes the pod, and its kubelet fails it at once."""
    crowd = Crowd({"a": 3})
    crowd.apply("demo", trainers=2, lifecycle={"backoffSeconds": 8})
    failures, name = list[float](), "demo-trainer-1"
    for _ in range(120):
        await crowd.turn()
        pod = crowd.cluster.objects.get(("Pod", CROWD, name))
        if pod and pod["spec"].get("nodeName") and pod["status"].get("phase") != "Failed":
            failures.append(crowd.now)
            pod = crowd.cluster.edit("Pod", CROWD, name)
            why = {"reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
            pod["status"] = {"phase": "Failed", **why}
    waits = [b - a for a, b in pairwise(failures)]
    assert len(waits) >= 3
    assert all(wait >= 8 * 2**i for i, wait in enumerate(waits)), waits
    said = "demo-trainer-1: the kubelet ended it on node a: UnexpectedAdmissionError: no healthy devices present"
    assert said in crowd.status("demo").message


def failed(uid: str, **fields: Any) -> Pod:
    return Pod(name="demo-trainer-0", uid=uid, role="trainer", ordinal=0, **{"failed": "Evicted"} | fields)


def test_failures_of_a_pod_name_are_counted_once_each_and_forgiven_in_time() -> None:
    now = [1000.0]
    pods = FailedPods(lambda: now[0])

    def last() -> FailedPod:
        return pods.of(JOB)["demo-trainer-0"]

    pods.note(JOB, failed("a", failed=""))
    assert pods.of(JOB) == {}
    pods.note(JOB, failed("a"))
    now[0] += 5
    pods.note(JOB, failed("a", node="n1"))
    assert (last().times, last().at, last().pod.node) == (1, 1000.0, "n1"), "its deletion is no further failure"
    pods.note(JOB, failed("b", failed="", disrupted="drained"))
    assert last().times == 1, "nobody waits for what the pod has not caused"
    pods.note(JOB, failed("c"))
    assert last().times == 2
    now[0] += FORGIVEN
    pods.note(JOB, failed("d"))
    assert last().times == 1
    pods.forget(JOB)
    assert pods.of(JOB) == {}


def test_failed_pods_whose_names_do_not_come_again_are_forgotten_in_time() -> None:
    """As of sandboxes that agent-sandbox makes, which are drained with their nodes for weeks."""
    now = [1000.0]
    pods, job = FailedPods(lambda: now[0]), ("research", "demo")
    lasting = Pod(name="demo-trainer-0", uid="u", role="trainer", ordinal=0, failed="Evicted")
    for number in range(1000):
        now[0] += 60.0
        pods.note(
            job, Pod(name=f"sandbox-{number}", uid=f"u{number}", role="sandbox-0", ordinal=0, disrupted="drained")
        )
        pods.note(job, lasting)
    assert len(pods.of(job)) <= REMEMBERED_SECONDS / 60.0 + 2
    assert pods.of(job)["demo-trainer-0"].at == 1060.0, "it is still there"


@pytest.mark.parametrize(
    ("status", "deleting", "said"),
    [
        ({"phase": "Running", "reason": "Evicted"}, False, ""),
        ({"phase": "Failed", "reason": "Evicted", "message": FULL}, False, f"Evicted: {FULL}"),
        ({"phase": "Failed", "reason": "Evicted", "message": FULL}, True, f"Evicted: {FULL}"),
        ({"phase": "Failed", "reason": "NodeAffinity"}, False, "NodeAffinity"),
        ({"phase": "Failed"}, False, "no reason given"),
        ({"phase": "Failed"}, True, ""),
    ],
)
def test_what_the_kubelet_says_of_a_failed_pod(status: dict[str, Any], deleting: bool, said: str) -> None:
    meta = {"name": "demo-trainer-0", "uid": "u"} | ({"deletionTimestamp": stamp(NOW)} if deleting else {})
    assert parse_pod({"metadata": meta, "spec": {}, "status": status}).failed == said


def test_a_message_that_is_too_long_for_a_failure_is_cut() -> None:
    words = "x" * 100_000
    condition = {"type": "DisruptionTarget", "status": "True", "message": words}
    for status in ({"phase": "Failed", "message": words}, {"phase": "Failed", "conditions": [condition]}):
        pod = parse_pod({"metadata": {"name": "demo-trainer-1", "uid": "pod-1"}, "spec": {}, "status": status})
        job = make_job().with_attempt().failing(0, kind="collective")
        pods = (job.pods[0], replace(pod, role="trainer"))
        last = replace(job, pods=pods).next().last_failure
        assert last and last.failure and len(last.failure.message) < LONGEST + 200
