"""The budget of a job's events."""

from typing import Any

import pytest

from rljob_api import names
from rljob_api.protocol import Failure, Report
from rljob_operator.kube.api import NotFound, Object
from rljob_operator.policies.change import Event
from rljob_operator.reconcile.events import BURST, COMBINED, REFILL, SIMILAR, WINDOW, EventRecorder
from simulator.cluster import FakeCluster
from simulator.makers import META
from simulator.world import NAMESPACE, World

NOW = 1_000_000.0


def written(cluster: FakeCluster) -> list[Object]:
    return [obj for (kind, _, _), obj in cluster.objects.items() if kind == "Event"]


def event(message: str, reason: str = "RolloutFailed") -> Event:
    return Event("Warning", reason, message)


async def test_an_event_that_repeats_is_counted() -> None:
    cluster = FakeCluster()
    recorder = EventRecorder(cluster)
    for second in range(5):
        await recorder.record(META, (event("it broke"),), NOW + second)
    (found,) = written(cluster)
    assert (found["count"], found["message"]) == (5, "it broke")
    assert found["firstTimestamp"] < found["lastTimestamp"]
    await recorder.record(META, (event("it broke"),), NOW + WINDOW + 10)
    assert [found["count"] for found in written(cluster)] == [5, 1], "after the window it is a new event"


async def test_events_that_are_alike_are_combined_and_others_are_not() -> None:
    cluster = FakeCluster()
    recorder = EventRecorder(cluster)
    for i in range(SIMILAR + 5):
        await recorder.record(META, (event(f"failure {i}"),), NOW + i)
    await recorder.record(META, (event("step 3 is saved", "CheckpointSaved"),), NOW + 20)
    *own, combined, saved = written(cluster)
    assert [found["message"] for found in own] == [f"failure {i}" for i in range(SIMILAR)]
    assert (combined["message"], combined["count"]) == (f"{COMBINED}failure {SIMILAR + 4}", 5)
    assert saved["message"] == "step 3 is saved"


async def test_a_job_has_a_burst_of_events_and_then_one_every_five_minutes() -> None:
    cluster = FakeCluster()
    recorder = EventRecorder(cluster)
    for message in range(SIMILAR):
        for reason in range(10):
            await recorder.record(META, (event(f"{message}", f"Reason{reason}"),), NOW)
    assert len(written(cluster)) == 10 + BURST, "the first of each reason is free"
    for i in range(2):
        await recorder.record(META, (event("x", "Reason0"), event("y", "Reason1")), NOW + (i + 1) * REFILL)
    assert sum(found["count"] for found in written(cluster)) == 10 + BURST + 2
    await recorder.record(META, (event("it is new", "Rare"),), NOW + 2 * REFILL)
    assert written(cluster)[-1]["message"] == "it is new", (
        "a flood of other events hides no event of a reason of its own"
    )
    other = META.model_copy(update={"name": "other"})
    await recorder.record(other, (event("x"), event("y")), NOW)
    assert [found["message"] for found in written(cluster)[-2:]] == ["x", "y"], "another job has a budget of its own"


async def test_a_clock_that_is_set_back_mutes_nothing() -> None:
    cluster = FakeCluster()
    recorder = EventRecorder(cluster)
    for now in (NOW, NOW - 86_400.0):
        await recorder.record(META, (event("it broke"),), now)
    assert [found["count"] for found in written(cluster)] == [1, 1]


class Forgetful(FakeCluster):
    """An API server whose events have expired."""

    async def merge(self, obj: Object, live: Object) -> Object:
        raise NotFound(404, "the event is gone")


async def test_an_event_that_has_expired_is_written_anew() -> None:
    cluster = Forgetful()
    recorder = EventRecorder(cluster)
    for second in range(2):
        await recorder.record(META, (event("it broke"),), NOW + second)
    assert [found["count"] for found in written(cluster)] == [1, 1]


@pytest.mark.parametrize("message", ["it broke", "it broke in {}"])
async def test_servers_that_report_a_new_failure_each_time_do_not_flood_the_events(message: str) -> None:
    """The review counted 200 events in 100 reconciles."""
    world = World(steps=1000)
    world.apply(rollout={"replicas": 2, "sampling": {"maxTokens": 8}})
    await world.until(state="Running")
    for i in range(100):
        for ordinal in range(2):
            fail(world, f"demo-rollout-{ordinal}", message.format(i), world.now + i)
        await world.turn()
    found = [obj for obj in written(world.cluster) if obj["reason"] == "RolloutFailed"]
    assert 1 <= len(found) <= 2 * SIMILAR
    writes = [line for line in world.cluster.writes if " Event " in line]
    assert len(writes) <= BURST + len(set(world.events())), "besides the first of each reason"


def fail(world: World, pod: str, message: str, time: float) -> None:
    """The pod's report, as its server writes it."""
    uid = world.cluster.objects[("Pod", NAMESPACE, pod)]["metadata"]["uid"]
    values: dict[str, Any] = {"pod": pod, "pod_uid": uid, "boot_id": "b", "attempt": 1}
    failure = Failure(kind="application", rank=0, exception="RuntimeError", message=message, time=time)
    report = Report(**values, failure=failure).dump_json()
    world.cluster.edit("ConfigMap", NAMESPACE, names.report(pod))["data"] = {names.REPORT_KEY: report}
