"""What benchmarks/replicas.py looks for when the leader changes: a fault of each kind is named. Its run is in tests/apiserver/test_lease.py."""

import asyncio
from typing import Any

import pytest

from benchmarks.history import LASTING, Expected, History
from benchmarks.replicas import within
from rljob_api import names
from rljob_api.protocol import Control, Member, Resume
from rljob_operator.kube.api import Object
from simulator.makers import make_job

PODS = 4


def job(state: str = "Running", attempt: int = 1, **status: Any) -> Object:
    found = {"state": state, "attempt": {"number": attempt}} | status
    return {"kind": names.KIND, "metadata": {"name": "a"}, "status": found}


def child(kind: str, uid: str, **fields: Any) -> Object:
    return {"kind": kind, "metadata": {"name": f"a-{uid}", "uid": uid, "labels": {names.LABEL_JOB: "a"}}} | fields


def control(attempt: int, boot: str) -> Object:
    """The message of an attempt whose only member is a boot of this name."""
    member = Member(pod="a-trainer-0", pod_uid="u", boot_id=boot, node_rank=0, address="10.0.0.1")
    where = {"name": "a", "namespace": "n", "job_uid": "j"}
    sent = Control(**where, attempt=attempt, members=[member], resume=Resume(policy="auto"), spec=make_job().spec)
    return child("ConfigMap", "control", data={names.CONTROL_KEY: sent.dump_json()})


def history(*seen: Object, pods: int = PODS) -> History:
    found = History()
    for obj in (*seen, *(child("Pod", f"pod-{i}") for i in range(pods))):
        found.see(obj, gone=False)
    return found


def test_a_job_that_runs_with_the_pods_of_one_life_has_no_fault() -> None:
    assert list(history(job(), control(1, "x"), control(1, "x")).faults({"a": Expected()}, PODS)) == []


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (history(job(), pods=8), "a: 8 pods were made, not 4"),
        (history(job(), pods=3), "a: 3 pods were made, not 4"),
        (history(job(attempt=2)), "a: ('Running', 2, 0, 0, 0)"),
        (history(job("Pending")), "a: ('Pending', 1, 0, 0, 0)"),
        (history(job(restarts={"uncounted": 1})), "a: ('Running', 1, 0, 1, 0)"),
        (history(job(lostSteps=3)), "a: ('Running', 1, 0, 0, 3)"),
        (history(job(), *(child("StatefulSet", f"s{i}") for i in range(3))), "a: 3 StatefulSets were made, not 2"),
        (history(job(), control(2, "x"), control(1, "x")), "a: attempt 1 was published after attempt 2"),
        (history(job(), control(1, "x"), control(1, "y")), "a: attempt 1 was published with other members"),
    ],
)
def test_what_is_lost_or_done_twice_is_named(found: History, fault: str) -> None:
    (named,) = found.faults({"a": Expected()}, PODS)
    assert named.startswith(fault)


@pytest.mark.parametrize("kind", LASTING)
def test_a_child_that_was_made_again_is_named(kind: str) -> None:
    first, second = child(kind, "one"), child(kind, "two")
    assert list(history(job(), first, first, second).faults({"a": Expected()}, PODS)) == []
    second["metadata"]["name"] = first["metadata"]["name"]
    found = history(job(), first, second)
    assert list(found.faults({"a": Expected()}, PODS)) == [f"a: {kind} a-one was made 2 times"]


def test_what_is_left_of_a_deleted_job_is_named() -> None:
    found, deleted = history(job()), {"a": Expected(deleted=True)}
    assert list(found.faults(deleted, PODS)) == ["a was deleted and is there"] + [
        f"a is gone and its Pod a-pod-{i} is left" for i in range(PODS)
    ]
    for obj in (job(), *(child("Pod", f"pod-{i}") for i in range(PODS))):
        found.see(obj, gone=True)
    assert list(found.faults(deleted, PODS)) == []
    assert list(found.faults({}, PODS)) == ["a: nobody has created it"]


def test_what_does_not_come_ends_a_run_and_is_named() -> None:
    with pytest.raises(TimeoutError, match="waited for a-1 to be Running: not within"):
        asyncio.run(within("a-1 to be Running", asyncio.Event().wait(), seconds=0.01))
