"""Free capacity: kept up to date with each event, always as if it were added up anew, and offered to those whom it helps."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.specs import raw_spec
from rljob_api import names
from rljob_api.quantity import Thousandths, add
from rljob_api.status_parts import PlacementStatus, PodAssignment
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.nodes import parse_usage
from rljob_operator.cache.pods import parse_pod
from rljob_operator.kube.api import Object
from rljob_operator.schedulers.base import operations, pinned
from rljob_operator.schedulers.builtin import cycle
from rljob_operator.watch.events import CAPACITY_DELAY
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang, Placement, Stay
from rljob_placement.plan import plan
from simulator.cluster import FakeCluster
from simulator.crowd import Crowd
from simulator.feed import HOSTILE, PROMPT, Faults
from simulator.objects import job_object, node_object
from simulator.waiting import Waiting

NODES, JOBS, NAMESPACES = ("n1", "n2", "n3"), ("a", "b"), ("research", "production")
REQUESTS = {"trainer": {"cpu": 2000, "pods": 1000}, "rollout": {"cpu": 500, "gpu": 1000, "pods": 1000}}


def recomputed(cache: ClusterCache) -> dict[str, Thousandths]:
    """What is free on each node, added up from the caches of nodes, pods and jobs."""
    taken: dict[str, Thousandths] = {}
    for use in cache.usage.values():
        taken[use.node] = add(taken.get(use.node, {}), use.requests or {})
    for job in cache.jobs.values():
        placement = job.readable_status.placement if job.readable_status else None
        for seat in placement.assignments if placement and not job.meta.deletion_timestamp else ():
            entry = cache.usage.get((job.meta.namespace, seat.pod))
            there = (entry.value.requests if entry and entry.value.node == seat.node else None) or {}
            wanted = placement.requests.get(names.role_of(job.meta.name, seat.pod), {}) if placement else {}
            missing = {k: v - there.get(k, 0) for k, v in wanted.items() if v > there.get(k, 0)}
            taken[seat.node] = add(taken.get(seat.node, {}), missing)
    nodes = Cluster(tuple(node.schedulable for node in cache.nodes.values())).without(taken)
    return {node.name: dict(node.free) for node in nodes.nodes}


def pod(name: str, node: str, phase: str, cpu: str) -> Object:
    spec = {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu}}}]}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def job(name: str, places: list[tuple[str, str]], deleted: bool, readable: bool) -> Object:
    assigned = [PodAssignment(pod=f"{name}-{pod}", node=node) for pod, node in places]
    placement = PlacementStatus(assignments=assigned, requests=REQUESTS).dump() if readable else {"assignments": "none"}
    obj = job_object(name, raw_spec()) | {"status": {"placement": placement} if places else {}}
    obj["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    return obj


POD_NAMES = st.sampled_from(["trainer-0", "trainer-1", "rollout-0"])
OBJECTS = st.one_of(
    st.builds(
        lambda job, name, *rest: pod(f"{job}-{name}", *rest),
        st.sampled_from([*JOBS, "foreign"]),
        POD_NAMES,
        st.sampled_from(["", *NODES]),
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        st.sampled_from(["500m", "2", "7", "not a quantity"]),
    ),
    st.builds(
        job,
        st.sampled_from(JOBS),
        st.lists(st.tuples(POD_NAMES, st.sampled_from(NODES)), max_size=4),
        st.booleans(),
        st.sampled_from([True, True, True, False]),
    ),
    st.builds(
        lambda name, ready, pods: node_object(ready, name=name, pods=pods),
        st.sampled_from(NODES),
        st.booleans(),
        st.integers(1, 5),
    ),
)
EVENTS = st.tuples(
    OBJECTS,
    st.sampled_from(NAMESPACES),
    st.sampled_from(["added", "added", "added", "deleted", "listed without"]),
    st.sampled_from([1, 1, 1, -2]),
    st.booleans(),
)
"""Object, namespace, what happened, by how much the version grows, and whether somebody looks at the capacity."""


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=40))
def test_capacity_that_is_kept_is_what_would_be_added_up_after_any_events(events: list[Any]) -> None:
    cache, version, grown = ClusterCache(lambda: 0.0), 10, list[None]()
    cache.capacity.on_growth(lambda: grown.append(None))
    for obj, namespace, what, newer, looked in events:
        version = max(1, version + newer)
        meta = obj["metadata"] | {"uid": obj["metadata"]["name"], "resourceVersion": str(version)}
        if obj["kind"] != "Node":
            meta["namespace"] = namespace
        before, seen = recomputed(cache), cache.capacity.version
        kind, known = cache.of_kind(obj["kind"]), {**obj, "metadata": meta}
        grown.clear()
        if what == "added":
            kind.put(known)
        elif what == "deleted":
            kind.remove(known)
        else:
            kind.prune(set(), str(version), meta.get("namespace"))
        after = recomputed(cache)
        changed = {name for name in after if after[name] != before.get(name)}
        assert changed <= set(cache.capacity.changed_since(seen))
        more = any(v > before.get(name, {}).get(k, 0) for name, node in after.items() for k, v in node.items())
        assert grown or not more, "whoever waits hears of it"
        if looked:
            assert {node.name: dict(node.free) for node in cache.capacity.cluster().nodes} == after
    assert {node.name: dict(node.free) for node in cache.capacity.cluster().nodes} == recomputed(cache)


def test_nothing_is_kept_of_jobs_pods_and_nodes_that_are_gone() -> None:
    cache = ClusterCache(lambda: 0.0)
    for i in range(100):
        for obj in (
            node_object(True, name=f"n{i}"),
            pod(f"a{i}-trainer-0", f"n{i}", "Running", "1"),
            job(f"a{i}", [("trainer-0", f"n{i}"), ("trainer-1", "elsewhere")], deleted=False, readable=True),
        ):
            obj["metadata"] |= {"namespace": "research", "uid": f"u{i}", "resourceVersion": str(10 * i + 1)}
            cache.put(obj)
            cache.capacity.free(f"n{i}")
            obj["metadata"]["resourceVersion"] = str(10 * i + 5)
        cache.capacity.promise(("research", f"a{i}"), {f"n{i}": {"cpu": 1}})
        cache.capacity.promise(("research", f"a{i}"), {})
        for kind in ("RLJob", "Pod", "Node"):
            cache.of_kind(kind).prune(set(), str(10 * i + 9), None)
    parts = (cache.capacity, cache.capacity._taken)
    assert [name for part in parts for name, value in vars(part).items() if isinstance(value, dict) and value] == []


@pytest.mark.parametrize("faults", [PROMPT, HOSTILE])
@pytest.mark.parametrize("seed", range(6))
async def test_no_job_waits_that_would_fit_and_no_node_is_given_twice(seed: int, faults: Faults) -> None:
    """Jobs come, end and change in any order on nodes that are drained. When it is quiet, nobody has been left out."""
    crowd = Crowd({f"n{i}": 3 for i in range(6)}, faults=faults, random=Random(seed))
    for i in range(24):
        crowd.apply(f"job-{i}", trainers=crowd.random.randint(1, 5), priority=crowd.random.randint(0, 2))
        if crowd.random.random() < 0.4:
            crowd.delete(crowd.random.choice(crowd.jobs()))
        node = crowd.random.choice(list(crowd.nodes))
        crowd.drain(node) if crowd.random.random() < 0.2 else crowd.uncordon(node)
        for _ in range(crowd.random.randint(0, 4)):
            await crowd.turn()
            crowd.check_capacity()
    for _ in range(30):
        await crowd.turn()
        crowd.check_capacity()
    free, placed = crowd.feed.cache.capacity.cluster(), 0
    assert {node.name: dict(node.free) for node in free.nodes} == recomputed(crowd.feed.cache)
    for request in crowd.operator._scheduler._cache.pending(crowd.now, ()):
        assert plan(free, request.gang, request.stay).problem, f"{request.job} would fit"
    for name in crowd.jobs():
        placed += bool(crowd.on_nodes(name))
    assert placed


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of trainers of the gangs that were planned."""
    found: list[int] = []

    def counted(cluster: Cluster, gang: Gang, stay: Stay) -> Placement:
        found.append(gang.trainers)
        return plan(cluster, gang, stay)

    monkeypatch.setattr(cycle, "plan", counted)
    return found


async def test_jobs_that_wait_cost_next_to_nothing_while_small_pods_come_and_go(planned: list[int]) -> None:
    """The small version of `benchmarks/waiting_jobs.py`: no job is looked at, and none is planned."""
    waiting = Waiting(nodes=40, small=3, jobs=30, shapes=3, trainers=20)
    await waiting.settle()
    assert sorted(set(planned)) == [20, 21, 22] and len(planned) == 3, "equal jobs are planned once"
    planned.clear()
    for _ in range(30):
        await waiting.second(rate=5, whole=0.0)
    assert planned == []
    assert waiting.passes == {"": waiting.passes[""]} and waiting.passes[""] <= 30 / CAPACITY_DELAY + 1


async def test_nodes_that_are_offered_and_too_few_are_counted_and_neither_planned_nor_wake_a_job(
    planned: list[int],
) -> None:
    waiting = Waiting(nodes=40, small=3, jobs=30, shapes=3, trainers=20)
    await waiting.settle()
    planned.clear()
    for _ in range(30):
        await waiting.second(rate=2, whole=1.0)
    assert planned == [] and waiting.passes[""]
    assert waiting.passes == {"": waiting.passes[""]} and not waiting.placed()


async def test_a_job_that_fits_at_last_is_woken_and_no_other(planned: list[int]) -> None:
    waiting = Waiting(nodes=40, small=3, jobs=30, shapes=3, trainers=3)
    await waiting.settle()
    for _ in range(12):
        await waiting.second(rate=1, whole=1.0)
    assert 1 <= len(waiting.placed()) <= 4
    assert {name for name in waiting.passes if name} == waiting.placed()


async def test_a_pod_that_was_released_to_a_node_counts_there_before_anybody_says_that_it_is_bound() -> None:
    """Whatever its job says meanwhile: the event that it is bound may come late."""
    cluster, cache = FakeCluster(), ClusterCache(lambda: 0.0)
    cache.put(cluster.put(node_object(True, name="n1", pods=3)))
    spec = {"containers": [{"resources": {"requests": {"cpu": "1"}}}], "schedulingGates": [{"name": names.GATE}]}
    gated = cluster.put({"kind": "Pod", "metadata": _of_a_job(), "spec": spec, "status": {"phase": "Pending"}})
    cache.put(gated)
    before = cache.capacity.free("n1")
    released = await cluster.patch("Pod", "research", "a-rollout-0", operations(parse_pod(gated), "n1", 10.0))
    cache.put(released)
    after = cache.capacity.free("n1")
    assert before and after and (before.free["pods"], after.free["pods"]) == (3000, 2000)


def _of_a_job() -> Object:
    """Metadata of a job's pod."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "a-rollout", "uid": "s", "controller": True}
    meta = {"name": "a-rollout-0", "namespace": "research", "labels": names.labels("a", "rollout")}
    return meta | {"annotations": {names.ANNOTATION_TEMPLATE_HASH: "1"}, "ownerReferences": [owner]}


@pytest.mark.parametrize(
    ("meta", "gates"),
    [
        ({"labels": {}}, []),
        ({"labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}}, []),
        ({"ownerReferences": []}, []),
        ({"ownerReferences": [{"kind": "StatefulSet", "name": "others", "uid": "s", "controller": True}]}, []),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, []),
        ({}, [{"name": names.GATE}]),
    ],
)
def test_a_pod_that_no_job_released_takes_nothing_of_a_node_that_it_only_names(
    meta: Object, gates: list[Object]
) -> None:
    """Anybody may annotate a pod that no scheduler ever binds."""
    notes = {"annotations": {names.ANNOTATION_UNGATED: "2026-01-01T00:00:00Z"}}
    pod = {"metadata": _of_a_job() | notes, "spec": {"affinity": pinned({}, "n1"), "containers": []}}
    assert parse_usage(pod).node == "n1"
    pod["metadata"] |= meta
    pod["spec"]["schedulingGates"] = gates
    assert not parse_usage(pod).node
