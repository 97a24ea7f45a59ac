"""Objects that ask for a node to be left: a job moves away at the end of a step, as from a node that says so itself."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest

from rljob_api.leave_nodes import LONGEST, REQUESTS
from rljob_operator.kube.api import ApiError, Listing, NotFound, Object, path
from rljob_operator.kube.credentials import Credentials
from rljob_operator.operator import Operator, Options
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch import polled
from rljob_operator.watch.polled import DrainRequests
from simulator.objects import node_object
from simulator.world import NAMESPACE, World

DRAIN, MAINTENANCE = REQUESTS


def request(node: str, **fields: Any) -> Object:
    meta = {"name": "drain-a", "namespace": "nvsentinel"} | fields.pop("metadata", {})
    return {"kind": DRAIN, "metadata": meta, "spec": {"nodeName": node, "checkName": "SysLogsXIDError"}} | fields


def site(backend: str = "builtin", nodes: int = 4) -> World:
    """A job of three pods on nodes with capacity for one each."""
    world = World(steps=400, save_every=1000)
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    for i in range(nodes):
        world.cluster.put(node_object(True, name=f"n{i}", pods=1))
    world.apply(scheduling={"backend": backend})
    world.feed.deliver()
    return world


def places(world: World) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in world.cluster.pods(NAMESPACE) if pod["spec"].get("nodeName")}


def node_of(world: World, pod: str) -> str:
    return str(world.cluster.objects["Pod", NAMESPACE, pod]["spec"]["nodeName"])


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_a_job_leaves_a_node_for_which_there_is_a_request_and_loses_no_step(backend: str) -> None:
    world = site(backend)
    await world.until(state="Running", step=3)
    left = node_of(world, "demo-trainer-1")
    world.cluster.put(request(left))
    requests = DrainRequests(world.cluster, world.feed.cache, [DRAIN])
    await requests.look(DRAIN)
    await world.until(state="Running", attempt=2)
    assert left not in places(world) and world.status.lost_steps == 0 and world.status.restarts.counted == 0
    (entry,) = world.status.nodes
    assert (entry.node, entry.state, entry.quarantine) == (left, "excluded", "drainrequests drain-a")
    world.cluster.touch(world.cluster.objects["Node", None, left])
    await world.turn()
    assert [n.node for n in world.status.nodes] == [left], "a later version of the node changes nothing"
    world.cluster.remove(world.cluster.objects[DRAIN, "nvsentinel", "drain-a"])
    await requests.look(DRAIN)
    world.cluster.touch(world.job)
    for _ in range(70):
        await world.turn()
    assert world.status.nodes == [], "it may be used again"


async def test_without_another_node_the_job_stays_and_says_why() -> None:
    world = site(nodes=3)
    await world.until(state="Running", step=3)
    asked = node_of(world, "demo-trainer-0")
    world.cluster.put(request(asked))
    await DrainRequests(world.cluster, world.feed.cache, [DRAIN]).look(DRAIN)
    for _ in range(10):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 1
    sound = next(c for c in world.status.conditions if c.type == "NodesSound")
    assert (sound.status, sound.reason) == ("False", "NodeNeeded") and "drainrequests drain-a" in sound.message


def asked_for(world: World) -> dict[str, str]:
    nodes = world.feed.cache.nodes.values()
    return {node.name: node.quarantine for node in nodes if node.quarantine}


@pytest.mark.parametrize(
    "fields",
    [
        {"status": {"conditions": [{"type": "DrainComplete", "status": "True"}]}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {}},
        {"spec": {"nodeName": ["n0"]}},
        {"spec": "n0"},
        {"status": {"conditions": "True"}},
        {"status": 7},
        {"spec": {"nodeName": "no-such-node"}},
    ],
)
async def test_a_request_that_is_done_or_cannot_be_read_asks_for_nothing_and_hides_no_other(
    fields: dict[str, Any],
) -> None:
    world = site()
    world.cluster.put(request("n0", **fields))
    world.cluster.put(request("n1", metadata={"name": "drain-b"}))
    await DrainRequests(world.cluster, world.feed.cache, [DRAIN]).look(DRAIN)
    assert asked_for(world) == {"n1": "drainrequests drain-b"}


async def test_a_request_that_is_not_done_yet_asks_and_a_cordon_is_named_with_it() -> None:
    world = site()
    world.cluster.edit("Node", None, "n0")["spec"] = {"unschedulable": True}
    world.feed.deliver()
    world.cluster.put(request("n0", status={"conditions": [{"type": "DrainComplete", "status": "False"}]}))
    await DrainRequests(world.cluster, world.feed.cache, [DRAIN]).look(DRAIN)
    assert asked_for(world) == {"n0": "cordoned, drainrequests drain-a"}


async def test_all_requests_for_a_node_are_named_and_in_a_bounded_line() -> None:
    world = site()
    for name in ("drain-a", "drain-b"):
        world.cluster.put(request("n0", metadata={"name": name}))
    world.cluster.put(request("n0", kind=MAINTENANCE, metadata={"name": "disk", "namespace": None}))
    world.cluster.put(request("n1", metadata={"name": "x" * 253}))
    world.cluster.edit("Node", None, "n1")["spec"] = {"unschedulable": True}
    world.feed.deliver()
    requests = DrainRequests(world.cluster, world.feed.cache, REQUESTS)
    for kind in REQUESTS:
        await requests.look(kind)
    asked = asked_for(world)
    assert asked["n0"] == "drainrequests drain-a, drainrequests drain-b, nodemaintenances disk"
    assert asked["n1"].startswith("cordoned, drainrequests xxx") and len(asked["n1"]) == LONGEST


class Refusing:
    """An API server that has no such kinds, or answers with this error."""

    def __init__(self, error: ApiError | None) -> None:
        self.error = error

    async def pages(self, kind: str, namespace: str | None) -> AsyncIterator[Listing]:
        if self.error:
            raise self.error
        yield Listing("1", [request("n0")])


@pytest.mark.parametrize(
    ("error", "soon", "kept"),
    [
        (NotFound(404, "no such kind"), False, False),
        (ApiError(403, "forbidden"), False, True),
        (ApiError(500, "etcd"), True, True),
        (ApiError(0, "no answer"), True, True),
    ],
)
async def test_a_kind_that_cannot_be_listed_stops_nothing_and_is_logged_once(
    error: ApiError, soon: bool, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, api = site(), Refusing(None)
    requests = DrainRequests(api, world.feed.cache, [DRAIN, MAINTENANCE])  # type: ignore[arg-type]
    assert await requests.look(DRAIN)
    api.error = error
    with caplog.at_level(logging.WARNING):
        assert [await requests.look(DRAIN) for _ in range(3)] == [soon] * 3
    assert bool(asked_for(world)) == kept
    assert len(caplog.records) == (0 if error.code == 404 else 1)


@pytest.mark.parametrize("answer", [None, NotFound(404, "no such kind"), ApiError(403, "forbidden")])
async def test_jobs_wait_until_every_kind_has_been_listed_once_whatever_the_answer(answer: ApiError | None) -> None:
    world, api = site(), Refusing(ApiError(500, "etcd"))
    requests = DrainRequests(api, world.feed.cache, [DRAIN, MAINTENANCE])  # type: ignore[arg-type]
    waiting = asyncio.create_task(requests.known())
    await requests.look(DRAIN)
    await asyncio.sleep(0)
    api.error = answer
    await requests.look(DRAIN)
    await asyncio.sleep(0)
    assert not waiting.done(), "the other kind is not known"
    await requests.look(MAINTENANCE)
    await waiting


async def test_an_operator_reconciles_nothing_before_it_knows_the_requests(caplog: pytest.LogCaptureFixture) -> None:
    account = kopf.ConnectionInfo(server="http://127.0.0.1:9")
    operator = Operator(Options(identity="one"), Credentials(lambda: account))
    operator._relist._listed |= operator._relist.scopes
    reconciler = Reconciler(operator._api, operator._cache, 30.0, True)
    with caplog.at_level(logging.INFO), operator._queue.open():
        requests = DrainRequests(operator._api, operator._cache, REQUESTS)
        task = asyncio.create_task(operator._reconcile_all(reconciler, requests))
        for _ in range(20):
            await asyncio.sleep(0)
        assert "all kinds are listed" not in caplog.text
        requests._answered(*REQUESTS)
        for _ in range(20):
            await asyncio.sleep(0)
        assert "all kinds are listed" in caplog.text and not task.done()
        task.cancel()
        await asyncio.wait([task])
    await operator.close()


async def test_a_kind_that_cannot_be_listed_holds_jobs_up_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polled, "FIRST_LOOK", 0.01)
    requests = DrainRequests(Refusing(ApiError(500, "etcd")), site().feed.cache, [DRAIN])  # type: ignore[arg-type]
    await requests.look(DRAIN)
    await requests.known()
    assert f"without the requests that cannot be listed: ['{DRAIN}']" in caplog.text
    await DrainRequests(Refusing(None), site().feed.cache, []).known()  # type: ignore[arg-type]


def test_a_kind_is_called_as_kubectl_does() -> None:
    assert path(DRAIN, None) == "/apis/nvsentinel.nvidia.com/v1alpha1/drainrequests"
    assert path(MAINTENANCE, None, "a") == "/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances/a"
