"""What the operator knows of a job goes with it, whenever it vanishes: else its claims would keep nodes, and its namesake would inherit the rest."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import kopf
import pytest

from api.specs import raw_spec
from rljob_api import names
from rljob_api.backends import FINALIZERS
from rljob_api.status import JobStatus
from rljob_api.status_parts import PlacementStatus, PodAssignment
from rljob_operator.cache.cluster import SANDBOX_KINDS, ClusterCache
from rljob_operator.kube import leader_election as lease
from rljob_operator.kube.api import ApiError, Object
from rljob_operator.kube.credentials import Credentials
from rljob_operator.operator import Operator, Options
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch.events import SERVED
from rljob_placement.devices import Devices
from simulator.cluster import BrokenCluster, FakeCluster
from simulator.objects import job_object
from simulator.operating import operating
from simulator.patience import until
from simulator.world import NAMESPACE

KEY = (NAMESPACE, "demo")


class Silent(FakeCluster):
    """Writes no status, and does not say why."""

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        raise ApiError(0, "the connection is broken")


async def test_nothing_is_kept_of_a_write_without_an_answer_when_its_job_is_gone() -> None:
    cluster = Silent()
    cluster.put(job_object("demo", raw_spec()))
    operator = operating(cluster)
    with pytest.raises(ApiError, match="broken"):
        await operator(KEY)
    assert operator._writer._unanswered.keys() == {KEY}
    operator._cache.delete("RLJob", KEY)
    await operator(KEY)
    assert operator._writer._unanswered == {}


@asynccontextmanager
async def a_process() -> AsyncIterator[Operator]:
    """An operator that reaches no API server."""
    account = kopf.ConnectionInfo(server="https://127.0.0.1:1", insecure=True)
    operator = Operator(Options(identity="one"), Credentials(lambda: account))
    try:
        yield operator
    finally:
        await operator.close()


def of_the_cluster() -> Iterator[tuple[str, Object]]:
    """One object of each kind that is watched, of a job that has a node, and of nobody."""
    for kind in ("Node", *SERVED, *SANDBOX_KINDS, "Pod"):
        labels = names.labels("demo", "trainer")
        meta = {"name": "demo", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "5", "labels": labels}
        obj: Object = {"kind": kind, "metadata": meta | ({"namespace": ""} if kind == "Node" else {})}
        if kind == "RLJob":
            placement = PlacementStatus(assignments=[PodAssignment(pod="demo-trainer-0", node="demo")])
            obj |= {"spec": raw_spec(), "status": JobStatus(placement=placement).dump()}
        if kind == "Pod":
            owner = {"kind": "StatefulSet", "name": "demo-trainer", "uid": "s", "controller": True}
            meta["ownerReferences"] = [owner]
            resources = {"requests": {"cpu": "1"}}
            obj |= {"spec": {"nodeName": "demo", "containers": [{"name": "c", "resources": resources}]}}
            obj |= {"status": {"phase": "Failed", "reason": "Evicted"}}
        yield kind, obj


def kept(cache: ClusterCache) -> dict[str, int]:
    """How much the cache holds, by where."""
    parts = {"": cache, "capacity": cache.capacity, "ledger": cache.capacity._taken, "failed": cache.failed}
    parts |= {"pods": cache.pods, "usage": cache.usage}
    parts |= {kind: cache.of_kind(kind) for kind in ("RLJob", "Node", "ConfigMap", *cache.children)}
    held = ((f"{part}{name}", value) for part, owner in parts.items() for name, value in vars(owner).items())
    return {name: len(value) for name, value in held if isinstance(value, dict | list | set) and value}


async def test_an_operator_that_stands_by_knows_nothing_that_could_vanish_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody tells it: only the leader lists, and reads what kopf does not."""
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    async with a_process() as operator:
        cache, cluster = operator._cache, FakeCluster()
        operator._elector._api = cluster
        leading = asyncio.create_task(operator._elector.lead(operator._act))
        await until(lambda: operator._queue.is_open())
        for kind, obj in of_the_cluster():
            operator._handlers.handle(kind, obj)
        cache.request_nodes({"demo": "DrainRequest demo"})
        cache.set_devices(Devices(nodes={"demo": {"gpu": 1000}}))
        cache.capacity.promise(KEY, {"demo": {"cpu": 1000}})
        nothing = ClusterCache(time.time)
        assert len(kept(cache)) > 20 and kept(cache).keys() > kept(nothing).keys()
        cluster.edit("Lease", "default", lease.NAME)["spec"]["holderIdentity"] = "two"
        await until(lambda: kept(cache) == kept(nothing))
        for kind, obj in of_the_cluster():  # kopf watches all the time
            operator._handlers.handle(kind, obj)
        assert kept(cache) == kept(nothing) and cache.devices == nothing.devices
        leading.cancel()
        await asyncio.wait([leading])


async def test_an_operator_that_only_cannot_reach_the_api_server_keeps_what_it_knows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When it has its lease again, the lists say what has vanished, and the rest need not be read again."""
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(lease, "RENEW_DEADLINE", 0.1)
    async with a_process() as operator:
        operator._elector._api = FakeCluster()
        leading = asyncio.create_task(operator._elector.lead(operator._act))
        await until(lambda: operator._queue.is_open())
        operator._handlers.handle("RLJob", dict(of_the_cluster())["RLJob"])
        operator._elector._api = BrokenCluster()
        await until(lambda: not operator._queue.is_open())
        refused = caplog.text.count("connection refused")
        await until(lambda: caplog.text.count("connection refused") > refused + 2)
        assert len(operator._cache.jobs) == 1
        leading.cancel()
        await asyncio.wait([leading])


async def test_a_job_that_vanishes_while_its_namespace_is_not_served_is_forgotten() -> None:
    """Its namespace was deleted and made again: the list of jobs comes before all the others, and nobody asks for this job once more. Or others serve
    it, with its pods."""
    async with a_process() as operator:
        cluster = FakeCluster()
        reconciler = Reconciler(cluster, operator._cache, 30.0)
        with reconciler._pace.writing(KEY):
            pass
        objects = dict(of_the_cluster())
        objects["Pod"]["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": sorted(FINALIZERS)}
        for kind in ("RLJob", "Pod"):
            operator._cache.of_kind(kind).put(objects[kind])
        await operator._reconcile(reconciler, KEY)
        assert reconciler._pace._display, "what was not listed yet would look absent"
        operator._cache.of_kind("RLJob").delete(KEY)
        await operator._reconcile(reconciler, KEY)
        assert not reconciler._pace._display
        assert cluster.requests == 0, "the pod is not ours"
