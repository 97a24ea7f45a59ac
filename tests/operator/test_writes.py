"""Which writes are made, and which are not."""

import asyncio
from random import Random

import pytest

from api.specs import raw_spec
from rljob_api import names
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.reports import parse_control
from rljob_operator.kube.api import ApiError, Conflict, Object
from rljob_operator.kube.client import managed_fields_upgrade
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.reconcile.writer import AT_ONCE, covers, together
from simulator.cluster import FakeCluster
from simulator.controllers import sync_stateful_sets
from simulator.feed import PROMPT, Feed
from simulator.objects import copied, job_object
from simulator.operating import operating
from simulator.world import NAMESPACE, World


async def test_a_pass_over_an_unchanged_job_writes_nothing() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec()))
    operator = operating(cluster)
    await operator((NAMESPACE, "demo"))
    written = list(cluster.writes)
    assert written[0] == "replace RLJob demo", "the status comes first"
    for _ in range(3):
        await operator((NAMESPACE, "demo"))
    assert cluster.writes[len(written) :] in ([], ["replace RLJob demo"]), cluster.writes


class SlowCluster(FakeCluster):
    """A status takes so many seconds to write, by the cluster's own clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.now, self._seconds = 1000.0, seconds

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        self.now += self._seconds
        return await super().replace(obj, subresource)


@pytest.mark.parametrize(("takes", "spacing"), [(0.0, 5.0), (0.125, 12.5), (1.0, 30.0)])
async def test_counts_are_told_the_less_often_the_longer_a_write_takes(takes: float, spacing: float) -> None:
    cluster = SlowCluster(takes)
    cluster.put(job_object("demo", raw_spec()))
    cache = ClusterCache(lambda: cluster.now)
    feed = Feed(cluster, cache, PROMPT, Random())
    feed.deliver()
    operator = Reconciler(cluster, cache, progress_interval=30, clock=lambda: cluster.now, timer=lambda: cluster.now)
    await operator((NAMESPACE, "demo"))
    sync_stateful_sets(cluster)
    feed.deliver()
    assert await operator((NAMESPACE, "demo")) == spacing - takes
    assert cluster.writes.count("replace RLJob demo") == 1
    cluster.now = 1000.0 + spacing
    await operator((NAMESPACE, "demo"))
    assert cluster.writes.count("replace RLJob demo") == 2


async def test_a_slow_role_delays_its_binding() -> None:
    """The API server refuses a binding to a Role that it does not know yet."""
    cluster = FakeCluster()
    cluster.delays["Role"] = 0.02
    cluster.put(job_object("demo", raw_spec()))
    await operating(cluster)((NAMESPACE, "demo"))
    assert ("RoleBinding", NAMESPACE, "demo-pods") in cluster.objects


class MuteCluster(FakeCluster):
    """Takes no events."""

    async def create(self, obj: Object) -> Object:
        if obj["kind"] == "Event":
            raise ApiError(403, "events are forbidden")
        return await super().create(obj)


@pytest.mark.parametrize("cluster", [FakeCluster(), MuteCluster()], ids=["taken", "refused"])
async def test_an_event_is_about_its_job_and_one_that_is_refused_costs_nothing(cluster: FakeCluster) -> None:
    scheduling = {"backend": "builtin", "topologyLevels": ["no-such-label"]}
    job = cluster.put(job_object("demo", raw_spec(scheduling=scheduling)))
    await operating(cluster)((NAMESPACE, "demo"))
    events = [obj for key, obj in cluster.objects.items() if key[0] == "Event"]
    about = [
        (e["involvedObject"]["uid"], e["type"], e["reason"], "label no-such-label" in e["message"]) for e in events
    ]
    taken = [(job["metadata"]["uid"], "Warning", "Unplaceable", True)]
    assert about == ([] if isinstance(cluster, MuteCluster) else taken)
    assert ("StatefulSet", NAMESPACE, "demo-trainer") in cluster.objects


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_pods_come_after_what_they_need_unless_they_wait_at_a_gate(backend: str) -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec(scheduling={"backend": backend})))
    await operating(cluster)((NAMESPACE, "demo"))
    kinds = [line.split()[1] for line in cluster.writes if line.startswith("create") and "Event" not in line]
    first = kinds.index("StatefulSet")
    before = {"ServiceAccount", "Role", "Secret"} if backend == "builtin" else set(kinds) - {"StatefulSet"}
    assert set(kinds[:first]) == before


async def test_no_pod_is_ungated_while_a_name_belongs_to_another_owner() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec(scheduling={"backend": "builtin"})))
    meta = {"name": "demo-control", "namespace": NAMESPACE, "labels": {}}
    foreign = cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})
    for _ in range(4):
        await operating(cluster)((NAMESPACE, "demo"))
        sync_stateful_sets(cluster)
    gated = [pod["metadata"]["name"] for pod in cluster.pods(NAMESPACE) if pod["spec"].get("schedulingGates")]
    assert len(gated) == len(cluster.pods(NAMESPACE)) > 0
    cluster.remove(foreign)
    for _ in range(4):
        await operating(cluster)((NAMESPACE, "demo"))
        sync_stateful_sets(cluster)
    assert not any(pod["spec"].get("schedulingGates") for pod in cluster.pods(NAMESPACE))


async def test_one_write_that_fails_keeps_no_other_from_its_end() -> None:
    async def fails() -> None:
        failed.set()
        raise ApiError(500, "broken")

    async def ends(done: list[str]) -> None:
        await failed.wait()
        await asyncio.sleep(0)
        done.append("done")

    done, failed = list[str](), asyncio.Event()
    with pytest.raises(ApiError, match="broken"):
        await together([fails(), ends(done)])
    assert done == ["done"]


async def test_a_control_message_is_kept_as_it_was_made_and_read_only_if_it_came_back_otherwise() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec()))
    cache = ClusterCache(lambda: 1000.0)
    Feed(cluster, cache, PROMPT, Random()).deliver()
    await Reconciler(cluster, cache, progress_interval=30, clock=lambda: 1000.0, timer=lambda: 1000.0)(
        (NAMESPACE, "demo")
    )
    key = (NAMESPACE, names.control("demo"))
    written, job = cache.config_maps.get(key), cache.jobs.get((NAMESPACE, "demo"))
    assert written and written.value.control and job
    assert written.value.control.spec is job.value.validation.result.accepted, (
        "the job has one spec, not two that are equal"
    )
    assert written.value.control == parse_control(written.value.object), "as an operator that starts again reads it"

    edited = cluster.edit("ConfigMap", *key)
    other = written.value.control.model_copy(update={"attempt": 7})
    edited["data"] = {names.CONTROL_KEY: other.dump_json()}
    cache.put(copied(edited))
    read = cache.config_maps.get(key)
    assert read and read.value.control == other


async def test_an_edited_child_is_corrected() -> None:
    world = World()
    world.apply()
    await world.until(state="Running")
    policy = world.cluster.edit("NetworkPolicy", NAMESPACE, "demo-pods")
    policy["spec"]["ingress"] = []
    await world.turn()
    assert len(world.cluster.edit("NetworkPolicy", NAMESPACE, "demo-pods")["spec"]["ingress"]) == 1


async def test_a_child_of_a_namesake_is_not_taken_over() -> None:
    world = World()
    world.apply()
    await world.until(state="Running")
    policy = world.cluster.edit("NetworkPolicy", NAMESPACE, "demo-pods")
    policy["metadata"]["ownerReferences"][0]["uid"] = "another"
    policy["spec"]["ingress"] = []
    await world.turn()
    assert world.cluster.edit("NetworkPolicy", NAMESPACE, "demo-pods")["spec"]["ingress"] == []


async def test_a_child_that_lost_its_labels_is_a_conflict_that_is_told() -> None:
    world = World()
    world.apply()
    await world.until(state="Running")
    world.restart_operator()
    del world.cluster.edit("NetworkPolicy", NAMESPACE, "demo-pods")["metadata"]["labels"]["rljob.dev/job"]
    world.restart_operator()
    for _ in range(3):
        await world.turn()
    admitted = next(c for c in world.status.conditions if c.type == "Admitted")
    assert (admitted.status, admitted.reason) == ("False", "ChildConflict")
    assert "NetworkPolicy demo-pods exists and has not this job's labels" in admitted.message


async def test_a_job_that_is_being_deleted_is_left_to_its_owner_references() -> None:
    cluster = FakeCluster()
    job = cluster.put(job_object("demo", raw_spec()))
    job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await operating(cluster)((NAMESPACE, "demo")) is None
    assert await operating(cluster)((NAMESPACE, "gone")) is None
    assert cluster.writes == []


def test_what_others_add_does_not_matter() -> None:
    assert covers({"a": 1, "b": [{"c": 2, "default": 3}]}, {"a": 1, "b": [{"c": 2}]})
    assert not covers({"a": 1}, {"a": 2})
    assert not covers({"b": [1, 2]}, {"b": [1]})
    assert covers({}, {"readOnly": False}), "the API server leaves zero values out"


def test_fields_of_a_creation_become_fields_of_an_apply() -> None:
    entries = [{"manager": "launcher", "operation": "Apply"}, {"manager": "rljob-operator", "operation": "Update"}]
    live = {"metadata": {"resourceVersion": "7", "managedFields": entries}}
    assert managed_fields_upgrade(live) == [
        {"op": "replace", "path": "/metadata/managedFields/1/operation", "value": "Apply"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
    ]
    entries[1]["operation"] = "Apply"
    assert managed_fields_upgrade(live) == []


class BusyCluster(FakeCluster):
    """Refuses what `busy` names (verb and kind) because others write at this moment."""

    busy = ""

    async def create(self, obj: Object) -> Object:
        self._refuse(f"create {obj['kind']}")
        return await super().create(obj)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        self._refuse(f"patch {kind}")
        return await super().patch(kind, namespace, name, operations)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        self._refuse(f"delete {kind}")
        await super().delete(kind, namespace, name, uid, force=force)

    def _refuse(self, what: str) -> None:
        if what == self.busy:
            raise Conflict(409, "the object has been modified; please apply your changes to the latest version")


@pytest.mark.parametrize("busy", ["create Secret", "patch Pod", "delete Pod"])
async def test_a_conflict_is_no_sign_that_a_write_was_done(busy: str) -> None:
    """Nothing else would wake the job again."""
    cluster = BusyCluster()
    cluster.busy = busy
    cluster.put(job_object("demo", raw_spec(scheduling={"backend": "builtin"})))
    with pytest.raises(Conflict):
        await _until_released_and_outdated(cluster)
    cluster.busy = ""
    await _until_released_and_outdated(cluster)


class SlowDeletions(FakeCluster):
    """Counts how many are under way together, at most."""

    now_deleted = most_deleted = 0

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        self.now_deleted += 1
        self.most_deleted = max(self.now_deleted, self.most_deleted)
        await asyncio.sleep(0)
        self.now_deleted -= 1
        await super().delete(kind, namespace, name, uid, force=force)


@pytest.mark.parametrize(("trainers", "at_once"), [(3, 4), (AT_ONCE + 4, AT_ONCE)])
async def test_pods_of_a_gang_are_deleted_together_and_not_one_after_another(trainers: int, at_once: int) -> None:
    cluster = SlowDeletions()
    cluster.put(job_object("demo", raw_spec(trainer={"device": "cpu", "nodes": trainers})))
    await _until_released_and_outdated(cluster, trainers + 1)
    assert cluster.most_deleted == at_once


async def _until_released_and_outdated(cluster: FakeCluster, count: int = 2) -> None:
    """Pods are made, released, and, being of a former template, deleted."""
    for _ in range(3):
        await operating(cluster)((NAMESPACE, "demo"))
        sync_stateful_sets(cluster)
    pods = cluster.pods(NAMESPACE)
    assert len(pods) == count
    assert all(pod["spec"]["nodeName"] for pod in pods)
    for pod in pods:
        cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])["metadata"]["annotations"] = {}
    await operating(cluster)((NAMESPACE, "demo"))
    assert all("deletionTimestamp" in pod["metadata"] for pod in pods)


async def test_a_pod_that_was_released_or_replaced_meanwhile_is_looked_at_again() -> None:
    """By another pass, since the watch will bring what this one has asked for, and call it no news."""
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec(scheduling={"backend": "builtin"})))
    await operating(cluster)((NAMESPACE, "demo"))
    sync_stateful_sets(cluster)
    late = operating(cluster)
    released, replaced = cluster.pods(NAMESPACE)
    cluster.edit("Pod", NAMESPACE, released["metadata"]["name"])["spec"]["schedulingGates"] = []
    cluster.remove(replaced)
    sync_stateful_sets(cluster)
    with pytest.raises(Conflict):
        await late((NAMESPACE, "demo"))
    await late((NAMESPACE, "demo"))
    assert [write for write in cluster.writes if write.startswith("patch Pod")] == [
        f"patch Pod {replaced['metadata']['name']}"
    ]


async def test_a_job_that_is_deleted_in_the_middle_of_a_pass_is_forgotten_by_the_next() -> None:
    cluster = FakeCluster()
    job = cluster.put(job_object("demo", raw_spec()))
    late = operating(cluster)
    cluster.remove(job)
    with pytest.raises(Conflict):
        await late((NAMESPACE, "demo"))
    assert await late((NAMESPACE, "demo")) is None
    assert cluster.writes == []
