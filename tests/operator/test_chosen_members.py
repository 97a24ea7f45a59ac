"""Which pods are an attempt's members, where there are more than it needs."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.status_parts import NodeStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import wanted_ordinals
from rljob_operator.times import stamp
from simulator.makers import NOW, Job, make_job

# Which pods are members


def spared(**fields: Any) -> Job:
    return make_job(nodes=2, scheduling={"backend": "none", "spareNodes": 1} | fields)


def pod(ordinal: int, **fields: Any) -> Pod:
    usual: dict[str, Any] = {"uid": f"pod-{ordinal}", "phase": "Running", "running": True, "created": float(ordinal)}
    usual["node"] = f"n{ordinal}"
    return Pod(name=f"demo-trainer-{ordinal}", role="trainer", ordinal=ordinal, **usual | fields)


def wanted(job: Job, *pods: Pod, leaving: tuple[str, ...] = (), ahead: bool = False) -> list[int]:
    return wanted_ordinals(job.status, pods, job.spec, 60, NOW, leaving, ahead)["trainer"]


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, [0, 1, 2]),
        ({"uid": "another", "created": 9.0}, [0, 2, 1]),
        ({"deleting": True}, [0, 2, 1]),
        ({"lost_since": NOW - 10}, [0, 2, 1]),
        ({"lost_since": NOW - 60}, [0, 2, 3]),
        ({"running": False, "waiting": "ImagePullBackOff: no such image"}, [0, 2, 1]),
        ({"running": False, "exited": "Error (exit code 1)"}, [0, 2, 1]),
        ({"exited": "Error (exit code 1)"}, [0, 1, 2]),
        ({"phase": "Failed", "running": False}, [0, 2, 1]),
        ({"uid": "another", "created": 9.0, "running": False, "unschedulable": "0/3 nodes"}, [0, 2, 1]),
    ],
)
def test_members_that_can_run_stay_and_the_oldest_of_the_others_follow(
    fields: dict[str, Any], chosen: list[int]
) -> None:
    ended = spared().with_attempt(ended_at=stamp(NOW))
    assert wanted(ended, pod(0), pod(1, **fields), pod(2)) == chosen


def test_a_pod_that_is_not_there_is_chosen_last() -> None:
    ended = spared().with_attempt(ended_at=stamp(NOW))
    assert wanted(ended, pod(1), pod(2)) == [1, 2, 0]
    assert wanted(spared()) == [0, 1, 2]


def test_a_spare_that_no_node_takes_is_not_waited_for_when_another_pod_runs() -> None:
    ended = spared().with_attempt(ended_at=stamp(NOW))
    late = pod(0, uid="another", created=9.0)
    assert wanted(ended, late, pod(1), pod(2, running=False, node="", unschedulable="0/3 nodes")) == [0, 1, 2]


def test_a_pod_that_runs_is_preferred_to_an_older_one_that_does_not_run_yet() -> None:
    """Its image may still be pulled, for which a pod has no reason to wait in its status."""
    cold: dict[str, Any] = {"phase": "Pending", "running": False}
    ended = spared().with_attempt(ended_at=stamp(NOW))
    assert wanted(ended, pod(0), pod(1, uid="another", created=9.0), pod(2, **cold)) == [0, 1, 2]
    two = spared(spareNodes=2).with_attempt(ended_at=stamp(NOW))
    assert wanted(two, pod(0), pod(1, deleting=True), pod(2, **cold), pod(3)) == [0, 3, 1, 2]


def test_members_and_warm_spares_stay_when_the_nodes_of_lower_ordinals_are_back() -> None:
    cold: dict[str, Any] = {"phase": "Pending", "running": False, "created": 9.0}
    back = [pod(1, uid="new-1", **cold), pod(2, uid="new-2", **cold)]
    job = spared().with_attempt(ended_at=stamp(NOW))
    assert job.status.attempt
    first, second = job.status.attempt.members
    members = [first, second.model_copy(update={"pod": "demo-trainer-3", "pod_uid": "pod-3"})]
    moved = job.with_status(attempt=job.status.attempt.model_copy(update={"members": members}))
    assert wanted(moved, pod(0), *back, pod(3), pod(4)) == [0, 3, 4]
    assert wanted(moved, pod(0), *back, pod(3, deleting=True), pod(4)) == [0, 4, 1]
    assert wanted(moved, pod(0), pod(1, uid="new-1"), back[1], pod(3), pod(4)) == [0, 3, 1], "one is scaled down"


def test_an_open_attempt_keeps_its_members_and_running_spares_stay() -> None:
    opened = spared().with_attempt()
    assert wanted(opened, pod(0), pod(1, deleting=True), pod(2)) == [0, 1, 2]
    assert wanted(opened, pod(0), pod(1), pod(2, running=False), pod(3)) == [0, 1, 3], "the node of 2 is back"
    assert wanted(opened, pod(0), pod(1, deleting=True), pod(2), ahead=True) == [0, 2, 1], "of the attempt after it"
    assert wanted(opened, pod(0), pod(1), pod(2), leaving=("n1",), ahead=True) == [0, 2, 1]
    assert wanted(opened, pod(0), pod(1), pod(2), ahead=True) == [0, 1, 2]


def test_a_spare_of_another_template_is_replaced_before_the_next_attempt() -> None:
    job = make_job(nodes=2, scheduling={"backend": "none", "spareNodes": 1}).with_pods().reported(state="idle")
    stale = pod(2, ready=True, ip="10.0.0.2", template_hash="former")
    job = Job(job.spec, job.status, (*job.pods, stale), job.reports)
    decision = job.decide()
    assert decision.status.attempt is None and [p.name for p in decision.delete] == ["demo-trainer-2"]


def test_the_status_blames_no_spare_that_nobody_waits_for() -> None:
    job = make_job(nodes=2, scheduling={"backend": "none", "spareNodes": 1}).with_pods().reporting(0, state="idle")
    spare = pod(2, running=False, waiting="ImagePullBackOff: no such image", template_hash=job.pods[0].template_hash)
    said = Job(job.spec, job.status, (*job.pods, spare), job.reports).next().message
    assert "demo-trainer-1 has not reported yet" in said and "demo-trainer-2" not in said


@pytest.mark.parametrize("backend", ["none", "volcano"])
@pytest.mark.parametrize(
    ("stuck", "state"),
    [
        ("demo-trainer-2", "excluded"),
        ("demo-rollout-1", "excluded"),
        ("demo-rollout-0", "needed"),
        ("demo-trainer-1", "needed"),
    ],
)
def test_only_a_pod_that_the_gang_needs_brings_the_job_back_to_a_bad_node(stuck: str, state: str, backend: str) -> None:
    """No other node is free for the spare once the job has left one."""
    queue = {"queue": "team"} if backend == "volcano" else {}
    scheduling = {"backend": backend, "spareNodes": 1} | queue
    job = make_job(nodes=2, scheduling=scheduling, rollout={"replicas": 2, "minReplicas": 1})
    failures = {"failures": ["attempt 1", "attempt 2"], "until": stamp(NOW + 60), "cause": "ProcessKilled"}
    job = job.with_attempt(2, ended_at=stamp(NOW)).with_status(
        nodes=[NodeStatus(node="bad", state="excluded", **failures)]
    )
    servers = [Pod(name=f"demo-rollout-{i}", uid=f"r-{i}", role="rollout", ordinal=i, running=True) for i in range(2)]
    waits = {"node": "", "running": False, "phase": "Pending", "unschedulable": "0/3 nodes", "created": NOW - 400}
    pods = tuple(replace(p, **waits) if p.name == stuck else p for p in (pod(0), pod(1), pod(2), *servers))
    if stuck == "demo-trainer-1":
        pods = tuple(p for p in pods if p.name != "demo-trainer-2")  # or else it would stand in
    (entry,) = Job(job.spec, job.status, pods).next().nodes
    assert entry.state == state
