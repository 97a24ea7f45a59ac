"""Fields of an RLJob have one writer each: Git the spec, people the request, the operator the status. So nothing is fought over."""

import copy
from typing import Any

import pytest

from chart.chart import HELM, NO_HELM, render, rules
from gitops.lives import documents
from rljob_operator.kube.api import Object
from simulator.cluster import FakeCluster
from simulator.world import World


class Recorder(FakeCluster):
    """Keeps every write to an RLJob."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[str, str]] = []

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        self.jobs += [("replace", subresource)] if obj["kind"] == "RLJob" else []
        return await super().replace(obj, subresource)

    async def apply(self, obj: Object, live: Object) -> Object:
        self.jobs += [("apply", "")] if obj["kind"] == "RLJob" else []
        return await super().apply(obj, live)

    async def merge(self, obj: Object, live: Object) -> Object:
        self.jobs += [("merge", "")] if obj["kind"] == "RLJob" else []
        return await super().merge(obj, live)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        self.jobs += [("patch", "")] if kind == "RLJob" else []
        return await super().patch(kind, namespace, name, operations)


async def test_the_operator_writes_the_status_of_a_job_and_nothing_else_of_it() -> None:
    cluster = Recorder()
    world = World(steps=12, cluster=cluster)
    world.apply(suspend=True)
    applied = untouched(world.job)
    await world.until(state="Suspended")
    world.request("n1", "resume")
    await world.until(state="Running", step=3)
    world.kill_pod("demo-trainer-1")
    await world.until(state="Succeeded")
    assert len(cluster.jobs) > 5
    assert set(cluster.jobs) == {("replace", "status")}
    after = untouched(world.job)
    assert after["spec"] == applied["spec"]
    assert after["metadata"].keys() == applied["metadata"].keys(), "no finalizers, no annotations of ours"


def untouched(job: Object) -> Any:
    return copy.deepcopy({k: v for k, v in job.items() if k != "status"})


def test_self_heal_has_nothing_to_undo_while_a_request_holds() -> None:
    """What Git says stays in the object, whatever was asked for."""
    requested = [job for what, job in documents() if what.startswith(("suspend requested", "resume requested"))]
    assert requested
    assert not any(job["spec"].get("suspend") for job in requested)
    assert any(job["status"]["state"] == "Suspended" for job in requested)


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
def test_the_operator_has_no_right_to_write_more_than_the_status() -> None:
    held = rules(render()[("ClusterRole", "rljob")])
    writes = {(resource, verb) for _, resource, verb in held if resource.startswith("rljobs")}
    assert writes - {("rljobs", verb) for verb in ("get", "list", "watch")} == {
        ("rljobs/status", "update"),
        ("rljobs/finalizers", "update"),
    }
