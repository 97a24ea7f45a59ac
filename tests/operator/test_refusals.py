"""Why pods did not get onto their nodes is said once, whichever node is the next to refuse them."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_api.status import JobStatus
from rljob_api.status_parts import Exclusion, PlacementStatus, PodAssignment
from rljob_operator.policies.placement import (
    EXCLUDED_SECONDS,
    MOST,
    SILENT,
    UNBOUND_SECONDS,
    refusal_reason,
    refusal_reasons,
)
from simulator.makers import NOW, Job, make_job

CPU = (
    "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/4"
)
TAINT = "0/4 nodes are available: 1 node(s) had untolerated taint {example.com/x: y}, 3 node(s) didn't match Pod's node affinity/selector."
NO_CLAIM = '0/4 nodes are available: persistentvolumeclaim "data" not found. not found'
TAINTED = "node(s) had untolerated taint {example.com/x: y}"
LATELY = "in the last 10 minutes nodes refused pods"
SAID = {"a": TAINT, "b": CPU, "c": TAINT, "d": CPU}
"""By the scheduler, of a pod that is pinned to the node."""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (CPU, "Insufficient cpu"),
        (TAINT, TAINTED),
        ("0/2 nodes are available: 1 Insufficient memory, 1 Insufficient cpu.", "Insufficient cpu, Insufficient memory"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "node(s) didn't match Pod's node affinity/selector"),
        ("rejected by a plugin", "rejected by a plugin"),
        ("", SILENT),
    ],
)  # fmt: skip
def test_the_cause_is_that_of_the_node_to_which_the_pod_is_pinned(said: str, found: str) -> None:
    assert refusal_reason(said) == found


def test_causes_are_said_once_each_by_name_whatever_the_order_of_nodes_and_not_too_many() -> None:
    def of(*found: str) -> str:
        excluded = [Exclusion(node=str(i), until="", cause=one) for i, one in enumerate(found)]
        return refusal_reasons(PlacementStatus(excluded=excluded))

    assert of("b", "a", "b") == of("a", "b", "a") == "a; b"
    assert of(*"edcba") == of(*"abcd") == "a; b; c; and others"
    assert len(of(*"abc").split("; ")) == MOST
    assert of() == of("") == ""


def waiting(node: str, status: JobStatus | None = None, **pod: Any) -> Job:
    """A job whose second trainer waits for a node, which the first one has."""
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node=found, rank=i) for i, found in enumerate(("z", node))]
    job = make_job(nodes=2, scheduling={"backend": "builtin"})
    job = replace(job, status=status) if status else job
    before = job.status.placement or PlacementStatus()
    job = job.with_status(placement=before.model_copy(update={"assignments": assigned})).with_pods(node="z")
    return job.changing_pod(1, node="", running=False, ready=False, phase="Pending", **pod)


def texts(status: JobStatus) -> tuple[str, str, str]:
    (placed,) = [c for c in status.conditions if c.type == "Placed"]
    return placed.reason, placed.message, status.message


def test_nodes_that_refuse_a_pod_in_turn_for_two_causes_change_neither_event_nor_condition_each_minute() -> None:
    status, events, found = None, [], []
    for minute in range(12):
        now, node = NOW + minute * UNBOUND_SECONDS, "abcd"[minute % 4]
        late = waiting(node, status, ungated_at=now - UNBOUND_SECONDS, unschedulable=SAID[node]).decide(now)
        assert [pod.name for pod in late.delete] == ["demo-trainer-1"]
        events += [e.message for e in late.events if e.reason == reasons.NOT_BOUND]
        anew = waiting(node, late.status, gates=(names.GATE,)).decide(now + 5)
        third = waiting(node, anew.status, ungated_at=now, unschedulable=SAID[node]).decide(now + 30)
        found += [texts(decision.status) for decision in (late, anew, third)]
        status = third.status
    said = "pod demo-trainer-1 did not get onto node"
    both = f"Insufficient cpu; {TAINTED}"
    assert events == [
        f"{said} a in 60 s and is placed anew: {TAINTED}",
        f"{said} b in 60 s and is placed anew: {both}",
    ]
    refusal = f"{LATELY}: {both}"
    assert set(found[3:]) == {(reasons.NOT_BOUND, refusal, f"waiting for trainer pods: {refusal}")}


def test_pods_that_are_on_their_nodes_are_not_said_to_have_been_refused() -> None:
    late = waiting("a", ungated_at=NOW - UNBOUND_SECONDS, unschedulable=CPU).decide()
    there = replace(waiting("b"), status=late.status).with_pods(node="z").with_rollout(node="z")
    assert texts(there.decide(NOW + 10).status)[:2] == (reasons.PLACED, "")


def test_condition_and_message_agree_when_a_pod_that_a_node_refused_fits_no_node_now() -> None:
    late = waiting("a", ungated_at=NOW - UNBOUND_SECONDS, unschedulable=CPU).decide()
    now = NOW + UNBOUND_SECONDS + 5
    status = waiting("b", late.status, ungated_at=NOW + 5, unschedulable=NO_CLAIM).decide(now).status
    why = 'no node takes demo-trainer-1: persistentvolumeclaim "data" not found'
    message = f"waiting for trainer pods: demo-trainer-1: cannot be scheduled: {NO_CLAIM}"
    assert texts(status) == (reasons.UNSCHEDULABLE, why, message)


def test_a_refusal_is_history_until_its_node_may_be_used_again() -> None:
    late = waiting("a", ungated_at=NOW - UNBOUND_SECONDS, unschedulable=CPU).decide()
    released = waiting("b", late.status, ungated_at=NOW + 5)
    assert texts(released.decide(NOW + 10).status)[:2] == (reasons.NOT_BOUND, f"{LATELY}: Insufficient cpu")
    gone = waiting("b", late.status).without_pod(1)
    assert gone.status.placement
    assigned = [*gone.status.placement.assignments, PodAssignment(pod="demo-rollout-0", node="z")]
    gone = gone.with_status(placement=gone.status.placement.model_copy(update={"assignments": assigned}))
    assert gone.decide(NOW + 10).requeue_after == EXCLUDED_SECONDS - 10
    assert texts(gone.decide(NOW + EXCLUDED_SECONDS).status)[:2] == (reasons.PLACING, "")


def test_what_is_wrong_with_a_pod_is_said_after_refusals_unless_it_is_about_another_node() -> None:
    late = waiting("a", ungated_at=NOW - UNBOUND_SECONDS, unschedulable=CPU).decide()

    def message(**pod: Any) -> str:
        return texts(waiting("b", late.status, ungated_at=NOW + 5, **pod).decide(NOW + 10).status)[2]

    lately = f"waiting for trainer pods: {LATELY}: Insufficient cpu"
    assert message(unschedulable=TAINT) == lately
    assert message(unschedulable=NO_CLAIM) == f"{lately}; demo-trainer-1: cannot be scheduled: {NO_CLAIM}"


def test_a_pod_that_is_deleted_without_an_assignment_is_an_event_even_if_its_cause_is_known() -> None:
    late: dict[str, Any] = {"ungated_at": NOW - UNBOUND_SECONDS, "unschedulable": CPU}
    known = waiting("a", **late).decide().status
    for status in (None, known):
        job = waiting("b", status, **late)
        assert job.status.placement
        assigned = job.status.placement.assignments[:1]
        job = job.with_status(placement=job.status.placement.model_copy(update={"assignments": assigned}))
        decision = job.decide()
        assert [pod.name for pod in decision.delete] == ["demo-trainer-1"]
        (event,) = decision.events
        assert (
            event.message == "pod demo-trainer-1 did not get onto a node in 60 s and is placed anew: Insufficient cpu"
        )


def test_several_pods_that_are_refused_at_once_are_one_event_with_their_causes() -> None:
    job = make_job(nodes=3, scheduling={"backend": "builtin"})
    assigned = [PodAssignment(pod=f"demo-trainer-{i}", node="abc"[i], rank=i) for i in range(3)]
    job = job.with_status(placement=PlacementStatus(assignments=assigned))
    job = job.with_pods(node="", running=False, phase="Pending", ungated_at=NOW - UNBOUND_SECONDS, unschedulable=TAINT)
    (event,) = job.changing_pod(0, unschedulable=CPU).decide().events
    assert (
        event.message
        == f"pod demo-trainer-0 did not get onto node a in 60 s and is placed anew, as are 2 more: Insufficient cpu; {TAINTED}"
    )
