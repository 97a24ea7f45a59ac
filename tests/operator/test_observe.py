"""Kubernetes' JSON becomes values; what cannot be trusted is named and left out."""

from typing import Any

from api.specs import raw_spec
from rljob_api import names
from rljob_api.protocol import Report
from rljob_operator.memory import BLIND, Memory
from rljob_operator.observe import observe
from rljob_operator.pods import parse_pod
from rljob_operator.snapshot import Pod, Snapshot
from rljob_operator.times import seconds
from simulator.cluster import FakeCluster, job_object, node_object


def pod_object(**status: Any) -> dict[str, Any]:
    meta = {"name": "demo-trainer-1", "namespace": "research", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    labels = {"labels": names.labels("demo", "trainer"), "annotations": {names.ANNOTATION_TEMPLATE_HASH: "h"}}
    return {"kind": "Pod", "metadata": meta | labels, "spec": {"nodeName": "node-1"}, "status": status}


def test_a_running_pod() -> None:
    pod = pod_object(
        phase="Running",
        podIP="10.0.0.1",
        conditions=[{"type": "Ready", "status": "True"}],
        containerStatuses=[{"state": {"running": {}}}],
    )
    assert parse_pod(pod) == Pod(
        name="demo-trainer-1",
        uid="u",
        role="trainer",
        ordinal=1,
        ip="10.0.0.1",
        phase="Running",
        ready=True,
        running=True,
        template_hash="h",
    )


def test_a_pod_in_trouble() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    pod = parse_pod(pod_object(containerStatuses=[{"state": {"waiting": waiting}, "lastState": last}]))
    assert (pod.waiting, pod.exited, pod.running) == (
        "CrashLoopBackOff: back-off 10s",
        "OOMKilled (exit code 137)",
        False,
    )


def test_a_pod_that_is_being_created_is_in_no_trouble() -> None:
    assert (
        parse_pod(pod_object(containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])).waiting == ""
    )


def test_a_pod_that_cannot_be_scheduled_and_one_that_was_evicted() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert parse_pod(pod_object(conditions=[unscheduled])).unschedulable == "0/3 nodes"
    evicted = {"type": "DisruptionTarget", "status": "True", "message": "low on memory"}
    assert parse_pod(pod_object(conditions=[evicted])).disrupted == "low on memory"


def test_a_node_that_does_not_answer_and_one_that_is_gone() -> None:
    silent = node_object(False, "2026-01-02T00:00:00Z")
    assert parse_pod(pod_object(), silent).lost_since == seconds("2026-01-02T00:00:00Z")
    assert parse_pod(pod_object(), {}).lost_since == 0.0
    assert parse_pod(pod_object(), node_object(True)).lost_since is None


async def look(report: str | None = None, pod: str = "demo-trainer-0") -> Snapshot:
    cluster = FakeCluster()
    job = cluster.put(job_object("demo", raw_spec()))
    meta = {"name": names.report(pod), "namespace": "research", "labels": names.labels("demo", "trainer")}
    cluster.put({"kind": "ConfigMap", "metadata": meta, "data": {names.REPORT_KEY: report} if report else {}})
    cluster.nodes.clear()
    lost = pod_object()
    del lost["metadata"]["uid"]
    cluster.put(lost)
    return await observe(cluster, job, Memory(), now=1000.0, progress_interval=30.0)


async def test_a_report_is_read() -> None:
    report = Report(pod="demo-trainer-0", pod_uid="u", boot_id="b")
    assert (await look(report.dump_json())).reports == {"demo-trainer-0": report}


async def test_a_report_that_is_not_json_is_named() -> None:
    snapshot = await look("not json")
    assert snapshot.reports == {}
    assert (
        "the report in ConfigMap demo-trainer-0-report cannot be read" in snapshot.unreadable["demo-trainer-0-report"]
    )


async def test_a_report_of_another_protocol_names_the_fix() -> None:
    snapshot = await look(Report(protocol=99, pod="demo-trainer-0", pod_uid="u", boot_id="b").dump_json())
    assert snapshot.reports == {}
    assert snapshot.unreadable["demo-trainer-0"].endswith("use a trainer image and an operator of the same release")


async def test_a_report_about_another_pod_is_ignored() -> None:
    assert (
        await look(Report(pod="demo-trainer-0", pod_uid="u", boot_id="b").dump_json(), pod="demo-trainer-1")
    ).reports == {}


async def test_a_pod_that_is_not_ready_has_its_node_looked_at() -> None:
    assert (await look()).trainers[0].lost_since == 0.0


def test_a_heartbeat_ages_on_our_clock() -> None:
    memory, key, attempt = Memory(), ("research", "demo"), ("uid", 1)
    assert [memory.beat_age(key, attempt, beat, now) for beat, now in ((1, 0.0), (1, 20.0), (2, 30.0), (2, 45.0))] == [
        0,
        20,
        0,
        15,
    ]


def test_an_outage_of_the_api_is_no_stall() -> None:
    memory, key, attempt = Memory(), ("research", "demo"), ("uid", 1)
    memory.beat_age(key, attempt, 1, 0.0)
    assert memory.beat_age(key, attempt, 1, BLIND + 1) == 0.0
    assert memory.beat_age(key, ("uid", 2), 1, BLIND + 5) == 0.0, "another attempt begins anew"
