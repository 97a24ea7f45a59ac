"""Kubernetes' JSON becomes values; what cannot be trusted is named and left out."""

from random import Random
from typing import Any

import pytest

from api.specs import raw_spec
from rljob_api import names
from rljob_api.leave_nodes import LeaveNodes
from rljob_api.protocol import Member, Progress, Report
from rljob_api.status import Attempt, JobStatus
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.nodes import CachedNode, parse_node
from rljob_operator.cache.pods import Pod, parse_pod
from rljob_operator.model.observer import Observer, ReconcilerState
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.times import seconds
from rljob_placement.cluster import Node as SchedulableNode
from simulator.cluster import FakeCluster
from simulator.feed import PROMPT, Faults, Feed
from simulator.objects import job_object, node_object

KEY = ("research", "demo")


def pod_object(**status: Any) -> dict[str, Any]:
    meta = {"name": "demo-trainer-1", "namespace": "research", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    labels = {"labels": names.labels("demo", "trainer"), "annotations": {names.ANNOTATION_TEMPLATE_HASH: "h"}}
    owner = {"kind": "StatefulSet", "name": "demo-trainer", "uid": "s", "controller": True}
    return {
        "kind": "Pod",
        "metadata": meta | labels | {"ownerReferences": [owner]},
        "spec": {"nodeName": "node-1"},
        "status": status,
    }


def test_a_running_pod() -> None:
    pod = pod_object(
        phase="Running",
        podIP="10.0.0.1",
        conditions=[{"type": "Ready", "status": "True"}],
        containerStatuses=[{"name": "trainer", "state": {"running": {}}}],
    )
    assert parse_pod(pod) == Pod(
        name="demo-trainer-1",
        uid="u",
        role="trainer",
        ordinal=1,
        created=seconds("2026-01-01T00:00:00Z"),
        node="node-1",
        ip="10.0.0.1",
        phase="Running",
        ready=True,
        running=True,
        template_hash="h",
    )


def test_a_pod_in_trouble() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    last = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    pod = parse_pod(
        pod_object(containerStatuses=[{"name": "trainer", "state": {"waiting": waiting}, "lastState": last}])
    )
    assert (pod.waiting, pod.exited, pod.running) == (
        "CrashLoopBackOff: back-off 10s",
        "OOMKilled (exit code 137)",
        False,
    )


@pytest.mark.parametrize(
    ("role", "message", "words"),
    [
        (
            "trainer",
            "Traceback (most recent call last):\n\nOSError: no\n",
            ("Traceback (most recent call last):", "OSError: no"),
        ),
        ("trainer", "x" * 5000, ("x" * 1024,)),
        ("trainer", None, ()),
        (names.sandbox_role(0), "what an agent has written", ()),
    ],
)
def test_a_container_that_ended_is_quoted_with_its_last_words(
    role: str, message: str | None, words: tuple[str, ...]
) -> None:
    last = {"terminated": {"reason": "Error", "exitCode": 1, "message": message}}
    pod = pod_object(containerStatuses=[{"name": names.container(role), "state": {}, "lastState": last}])
    pod["metadata"]["labels"][names.LABEL_ROLE] = role
    assert (parse_pod(pod).exited, parse_pod(pod).last_words) == ("Error (exit code 1)", words)


def test_a_container_that_somebody_injected_speaks_for_nobody() -> None:
    """Kubelets sort them by name."""
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    for name in ("istio-proxy", names.POOL_CONTAINER):
        injected = {"name": name, "state": {"running": {}}}
        pod = parse_pod(pod_object(containerStatuses=[injected, {"name": "trainer", "state": ended}]))
        assert (pod.running, pod.exited) == (False, "OOMKilled (exit code 137)")


@pytest.mark.parametrize("note", ["soon", "", "0001-01-01"])
def test_a_note_that_somebody_else_wrote_onto_a_pod_stops_nobody(note: str) -> None:
    """An error while a watch is read would end the operator, and whoever may write one pod could do that to all."""
    pod = pod_object()
    pod["metadata"]["annotations"] = {names.ANNOTATION_UNGATED: note}
    parse_pod(pod)


def test_a_pod_that_is_being_created_is_in_no_trouble() -> None:
    creating = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    assert parse_pod(pod_object(containerStatuses=[creating])).waiting == ""


def test_a_pod_that_cannot_be_scheduled_and_one_that_was_evicted() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert parse_pod(pod_object(conditions=[unscheduled])).unschedulable == "0/3 nodes"
    evicted = {"type": "DisruptionTarget", "status": "True", "message": "low on memory"}
    assert parse_pod(pod_object(conditions=[evicted])).disrupted == "low on memory"


def test_a_node_that_does_not_answer_and_one_that_is_out_of_service() -> None:
    silent = node_object(False, "2026-01-02T00:00:00Z")
    assert parse_node(silent, LeaveNodes()).lost_since == seconds("2026-01-02T00:00:00Z")
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    assert parse_node(silent | {"spec": {"taints": [taint]}}, LeaveNodes()).out_of_service
    pods = {"pods": 110_000}
    assert parse_node(node_object(True), LeaveNodes()) == CachedNode(
        name="node-1",
        schedulable=SchedulableNode("node-1", free=pods, size=pods),
        answers_since=seconds("2026-01-01T00:00:00Z"),
    )


def report_meta(job: dict[str, Any], pod: str) -> dict[str, Any]:
    """Of a report that the operator made for the job."""
    owner = {"kind": names.KIND, "name": "demo", "uid": job["metadata"]["uid"], "controller": True}
    labels = names.labels("demo", "trainer")
    return {"name": names.report(pod), "namespace": "research", "labels": labels, "ownerReferences": [owner]}


async def look(report: str | None = None, pod: str = "demo-trainer-0") -> Snapshot:
    """A pod on a node that does not exist, and its report."""
    cluster = FakeCluster()
    job = cluster.put(job_object("demo", raw_spec()))
    cluster.put(
        {"kind": "ConfigMap", "metadata": report_meta(job, pod), "data": {names.REPORT_KEY: report} if report else {}}
    )
    cluster.remove(cluster.objects["Node", None, "node-1"])
    cluster.put(pod_object())
    return await observed(cluster, ReconcilerState(), 1000.0)


async def observed(cluster: FakeCluster, memory: ReconcilerState, now: float, faults: Faults = PROMPT) -> Snapshot:
    cache = ClusterCache(lambda: now)
    Feed(cluster, cache, faults, Random(0)).deliver()
    job = cache.jobs.get(KEY)
    assert job
    return await Observer(cluster, cache, memory, 30.0).snapshot(KEY, job.value, now)


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
    assert (await look()).of("trainer")[0].lost_since == 0.0


def open_attempt(cluster: FakeCluster) -> Attempt:
    """Of the one pod that there is."""
    pod = cluster.put(pod_object())
    member = Member(pod="demo-trainer-1", pod_uid=pod["metadata"]["uid"], boot_id="b", node_rank=0, address="10.0.0.1")
    attempt = Attempt(number=1, members=[member])
    job = cluster.put(job_object("demo", raw_spec(lifecycle={"stallTimeoutSeconds": 60})))
    job["status"] = JobStatus(attempt=attempt).dump()
    return attempt


def reporting(cluster: FakeCluster, beat: int) -> None:
    report = Report(pod="demo-trainer-1", pod_uid="u", boot_id="b", attempt=1, progress=Progress(heartbeat=beat))
    name = names.report("demo-trainer-1")
    if ("ConfigMap", "research", name) not in cluster.objects:
        job = cluster.objects[("RLJob", *KEY)]
        cluster.put({"kind": "ConfigMap", "metadata": report_meta(job, "demo-trainer-1")})
    cluster.edit("ConfigMap", "research", name)["data"] = {names.REPORT_KEY: report.dump_json()}


class Eye:
    """An observer with a clock and a feed of its own."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.now, self.cluster, self.cache = 1000.0, cluster, ClusterCache(lambda: self.now)
        self.feed = Feed(cluster, self.cache, Faults(relist=10**6), Random(0))
        self.observer = Observer(cluster, self.cache, ReconcilerState(), 30.0)
        self.feed.deliver()

    async def look(self, now: float) -> Snapshot:
        self.now = now
        job = self.cache.jobs.get(KEY)
        assert job
        return await self.observer.snapshot(KEY, job.value, now)


async def test_a_members_pod_that_lost_its_labels_is_not_taken_for_gone() -> None:
    cluster = FakeCluster()
    (member,) = open_attempt(cluster).members
    eye = Eye(cluster)
    cluster.edit("Pod", "research", "demo-trainer-1")["metadata"]["labels"] = {}
    eye.feed.relist()
    assert (await eye.look(1000.0)).pod(member)
    cluster.remove(cluster.objects["Pod", "research", "demo-trainer-1"])
    requests = cluster.requests
    assert (await eye.look(1001.0)).pod(member) is None
    assert (await eye.look(1002.0)).pod(member) is None
    assert cluster.requests == requests + 1, "asked once"


async def test_pods_that_are_gone_are_remembered_for_the_length_of_an_attempt() -> None:
    """A job that loses a pod a day would otherwise fill the operator's memory."""
    cluster, state = FakeCluster(), ReconcilerState()
    attempt = open_attempt(cluster)
    cluster.remove(cluster.objects["Pod", "research", "demo-trainer-1"])
    for number in range(1, 30):
        members = [m.model_copy(update={"pod_uid": f"gone-{number}"}) for m in attempt.members]
        later = attempt.model_copy(update={"number": number, "members": members})
        cluster.edit("RLJob", *KEY)["status"] = JobStatus(attempt=later).dump()
        await observed(cluster, state, 1000.0 + number)
    (remembered,) = state.gone.values()
    assert remembered[1] == {"gone-29"}
    state.forget(KEY)
    assert not state.gone


async def test_a_heartbeat_ages_on_our_clock() -> None:
    cluster = FakeCluster()
    open_attempt(cluster)
    reporting(cluster, beat=1)
    eye = Eye(cluster)
    ages = [(await eye.look(now)).heartbeat_age for now in (1000.0, 1020.0)]
    reporting(cluster, beat=2)
    eye.now = 1030.0
    eye.feed.deliver()
    assert [*ages, (await eye.look(1030.0)).heartbeat_age, (await eye.look(1045.0)).heartbeat_age] == [0, 20, 0, 15]


async def test_a_heartbeat_that_the_watch_does_not_show_is_asked_for_before_it_counts_as_a_stall() -> None:
    cluster = FakeCluster()
    open_attempt(cluster)
    reporting(cluster, beat=1)
    eye = Eye(cluster)
    await eye.look(1000.0)
    reporting(cluster, beat=2)
    assert (await eye.look(1060.0)).heartbeat_age == 0, "the report was read live"
    assert (await eye.look(1120.0)).heartbeat_age == 60, "it says the same"


def test_a_heartbeat_alone_wakes_nobody_up_and_a_checkpoint_does() -> None:
    cache, cluster = ClusterCache(lambda: 0.0), FakeCluster()
    open_attempt(cluster)
    reporting(cluster, beat=1)
    stored = cluster.objects["ConfigMap", "research", names.report("demo-trainer-1")]
    assert cache.config_maps.put(stored) == {KEY}
    reporting(cluster, beat=2)
    assert cache.config_maps.put(stored) == set()
    report = Report(pod="demo-trainer-1", pod_uid="u", boot_id="b", attempt=1, state="stopped")
    cluster.edit("ConfigMap", "research", stored["metadata"]["name"])["data"] = {names.REPORT_KEY: report.dump_json()}
    assert cache.config_maps.put(stored) == {KEY}
