"""What is known never goes back, whatever comes late, twice or not at all."""

from random import Random
from typing import Any, NamedTuple

import pytest

from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import PoolSpec, ReferenceSpec
from rljob_api.status import JobStatus
from rljob_operator.cache import cache as cache_module
from rljob_operator.cache.cache import SHORT, Cache, _first, share_texts
from rljob_operator.cache.cluster import CAPACITY, ClusterCache
from rljob_operator.cache.jobs import transform
from rljob_operator.kube.api import Key, Object
from rljob_operator.watch.events import CAPACITY_DELAY, EventHandlers
from rljob_operator.watch.kopf_side import on_event
from simulator.feed import HOSTILE
from simulator.makers import make_job
from simulator.objects import node_object
from simulator.world import World

JOB = ("research", "demo")


def thing(version: int, value: int = 0, uid: str = "u", name: str = "a") -> Object:
    labels = {"rljob.dev/job": "demo"}
    meta = {"name": name, "namespace": "research", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": "Pod", "metadata": meta, "value": value}


def store() -> Cache[int]:
    return Cache(lambda obj, before: int(obj["value"]))


def test_an_older_version_is_ignored() -> None:
    known = store()
    assert known.put(thing(5, 1)) == {JOB}
    assert known.put(thing(4, 2)) == known.put(thing(5, 3)) == set()
    assert known.values() == [1]


def test_a_deletion_that_comes_after_its_successor_is_ignored() -> None:
    known = store()
    known.put(thing(9, 2, uid="successor"))
    assert known.remove(thing(7)) == set()
    assert known.values() == [2]
    assert known.remove(thing(12)) == {JOB}
    assert known.of(JOB) == {}


def test_an_object_that_was_deleted_does_not_come_back_from_a_list_or_an_answer_that_was_on_its_way() -> None:
    known = store()
    known.put(thing(3))
    known.remove(thing(7))
    assert known.put(thing(5)) == set() and known.values() == []
    assert known.put(thing(9, 2, uid="successor")) == {JOB}
    known.remove(thing(4, name="never seen"))
    assert known.put(thing(2, name="never seen")) == set() and len(known) == 1


def test_few_deletions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "DELETIONS", 10)
    known = store()
    for i in range(30):
        known.put(thing(2 * i, name=f"pod-{i}"))
        known.remove(thing(2 * i + 1, name=f"pod-{i}"))
    remembered = [value for value in vars(known).values() if isinstance(value, dict)]
    assert sum(map(len, remembered)) == 10
    assert known.put(thing(58, name="pod-29")) == set(), "the newest ones"


def test_a_list_removes_what_it_lacks_but_not_what_is_newer() -> None:
    known = store()
    known.put(thing(3, name="old"))
    known.put(thing(20, name="written since"))
    known.put(thing(8, name="new"))
    assert known.prune({("research", "new")}, "10", None) == {JOB}
    assert sorted(name for _, name in known.of(JOB)) == ["new", "written since"]
    assert known.prune(set(), "30", "elsewhere") == set()


def test_what_a_list_lacked_does_not_come_back_from_a_late_event_or_answer() -> None:
    known = store()
    known.put(thing(5, name="a"))
    known.prune(set(), "9", None)
    assert known.put(thing(7, name="a")) == set(), "older than the list that lacked it"
    assert known.put(thing(8, name="never seen")) == set() and known.values() == []
    assert known.put(thing(10, name="a")) == {JOB}, "made again since"


def test_a_list_of_one_namespace_says_nothing_of_others() -> None:
    known = store()
    known.prune(set(), "9", "production")
    assert known.put(thing(7)) == {JOB}
    known.prune(set(), "9", "research")
    assert known.put(thing(7)) == set() and known.values() == []


def test_a_version_that_a_live_read_did_not_find_does_not_come_back() -> None:
    known = store()
    known.put(thing(5))
    assert known.delete(("research", "a")) == {JOB}
    assert known.put(thing(5)) == set() and known.values() == []
    assert known.put(thing(6, uid="successor")) == {JOB}


def test_a_history_that_began_again_is_followed_after_its_next_list() -> None:
    """As after etcd was restored from a backup, whose versions are lower."""
    known = store()
    known.put(thing(900))
    known.prune({("research", "a")}, "1000", None)
    known.prune({("research", "a")}, "100", None)
    assert known.put(thing(150, name="b")) == {JOB}


def test_a_change_that_does_not_matter_is_kept_and_not_told() -> None:
    known = store()
    known.put(thing(1, 7))
    assert known.put(thing(2, 7)) == set()
    assert known.put(thing(3, 8)) == {JOB}
    assert known.put(thing(4, 8, uid="another of that name")) == {JOB}


def pod(version: int, node: str = "", job: str = "", phase: str = "Running") -> Object:
    labels = names.labels(job, "trainer") if job else {}
    meta = {
        "name": f"pod of {job}",
        "namespace": "research",
        "uid": "u",
        "resourceVersion": str(version),
        "labels": labels,
        "ownerReferences": [{"kind": "StatefulSet", "name": f"{job}-trainer", "uid": "s", "controller": True}],
    }
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}}


class Event(NamedTuple):
    type: str | None
    object: Object


async def seen(*events: Event, kind: str = "Pod", cache: ClusterCache | None = None) -> dict[Key, float]:
    """Who is woken by events of one kind, and how soon."""
    woken: dict[Key, float] = {}
    handlers = EventHandlers(cache or ClusterCache(lambda: 0.0), woken.__setitem__, 30.0)
    for event in events:
        await on_event(handlers)(event=event._asdict(), param=kind)
    return woken


async def test_one_watch_of_pods_tells_what_all_use_and_wakes_whose_they_are() -> None:
    cache = ClusterCache(lambda: 0.0)
    assert await seen(Event("ADDED", pod(2, "n1")), Event("ADDED", pod(3, "n2", "demo")), cache=cache) == {JOB: 0.0}
    assert {use.node for use in cache.usage.values()} == {"n1", "n2"} and len(cache.pods) == 1
    stripped = pod(4, "n2", "demo")
    stripped["metadata"]["labels"] = {}
    assert await seen(Event("MODIFIED", stripped), cache=cache) == {JOB: 0.0}, "it is not ours any more"
    assert len(cache.pods) == 0 and len(cache.usage) == 2


async def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    """Jobs of one name in two namespaces have them."""
    cache, ours, theirs = ClusterCache(lambda: 0.0), pod(2, "n1", "demo"), pod(3, "n2", "demo")
    theirs["metadata"] |= {"namespace": "production", "uid": "other"}
    await seen(Event("ADDED", ours), Event("ADDED", theirs), cache=cache)
    assert {use.node for use in cache.usage.values()} == {"n1", "n2"}
    deleted = ours | {"metadata": ours["metadata"] | {"resourceVersion": "4"}}
    woken = await seen(Event("DELETED", deleted), Event("MODIFIED", theirs), cache=cache)
    assert set(woken) == {("research", "demo"), CAPACITY}
    assert {use.node for use in cache.usage.values()} == {"n2"}
    changed = theirs | {"metadata": theirs["metadata"] | {"resourceVersion": "5"}, "spec": {"nodeName": "n3"}}
    woken = await seen(Event("MODIFIED", changed), cache=cache)
    assert set(woken) == {("production", "demo"), CAPACITY}, "it has left the other node"


async def test_capacity_is_offered_a_while_after_a_pod_has_ended() -> None:
    cache = ClusterCache(lambda: 0.0)
    cache.put(node_of(2, "n1"))
    assert await seen(Event("ADDED", pod(3, "n1")), cache=cache) == {}, "one that comes gives nobody capacity"
    ended = Event("MODIFIED", pod(4, "n1", phase="Succeeded"))
    assert await seen(ended, cache=cache) == {CAPACITY: CAPACITY_DELAY}
    assert await seen(Event("MODIFIED", node_of(5, "n1")), kind="Node", cache=cache) == {}, "a heartbeat"
    cordoned = node_of(6, "n1") | {"spec": {"unschedulable": True}}
    assert await seen(Event("MODIFIED", cordoned), kind="Node", cache=cache) == {CAPACITY: CAPACITY_DELAY}


@pytest.mark.parametrize("how", ["deleted", "being deleted", "without a placement"])
async def test_the_assignments_of_a_job_that_does_not_want_them_any_more_are_offered_to_others(how: str) -> None:
    """Also when none of its pods has arrived, so that none ends."""
    cache, meta = ClusterCache(lambda: 0.0), {"name": "goes", "namespace": "research", "uid": "goes"}
    seat = {"pod": "goes-trainer-0", "node": "n1", "rank": 0}
    placement = {"assignments": [seat], "requests": {"trainer": {"pods": 1000}}}
    cache.put(node_of(2, "n1"))
    job = {"kind": "RLJob", "metadata": meta | {"resourceVersion": "3"}, "spec": {}, "status": {"placement": placement}}
    assert await seen(Event("ADDED", job), kind="RLJob", cache=cache) == {("research", "goes"): 0.0}
    free = cache.capacity.free("n1")
    assert free and free.free == {"pods": 109_000}
    ends = {
        "deleted": Event("DELETED", job | {"metadata": meta | {"resourceVersion": "4"}}),
        "being deleted": Event(
            "MODIFIED", job | {"metadata": meta | {"resourceVersion": "4", "deletionTimestamp": "x"}}
        ),
        "without a placement": Event("MODIFIED", job | {"metadata": meta | {"resourceVersion": "4"}, "status": {}}),
    }
    woken = await seen(ends[how], kind="RLJob", cache=cache)
    assert woken == {("research", "goes"): 0.0, CAPACITY: CAPACITY_DELAY}
    free = cache.capacity.free("n1")
    assert free and free.free == {"pods": 110_000}


def node_of(version: int, name: str) -> Object:
    node = node_object(True, name=name)
    node["metadata"] |= {"uid": name, "resourceVersion": str(version)}
    return node


async def test_a_heartbeat_wakes_its_job_when_its_progress_is_due() -> None:
    beat = thing(2) | {"kind": "ConfigMap", "data": {"report.json": "{}"}}
    beats = [Event("MODIFIED", beat | {"metadata": beat["metadata"] | {"resourceVersion": str(i)}}) for i in (3, 4)]
    cache = ClusterCache(lambda: 0.0)
    cache.put(beat)
    assert await seen(*beats, kind="ConfigMap", cache=cache) == {JOB: 30.0}


async def test_a_nodes_heartbeat_is_not_looked_up_among_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large cluster has many of both."""
    cache, looked = ClusterCache(lambda: 0.0), list[object]()
    groups_of = cache.pods.groups_of
    monkeypatch.setattr(cache.pods, "groups_of", lambda wanted: looked.append(wanted) or groups_of(wanted))
    cache.put(pod(2, "node-1", "demo"))
    for version, ready in ((3, True), (4, True), (5, False)):
        node = node_object(ready)
        node["metadata"] |= {"uid": "n", "resourceVersion": str(version)}
        node["status"]["conditions"][0]["lastHeartbeatTime"] = f"2026-01-01T00:0{version}:00Z"
        woken = await seen(Event("MODIFIED", node), kind="Node", cache=cache)
        expected = {3: (1, {JOB, CAPACITY}), 4: (1, set()), 5: (2, {JOB, CAPACITY})}
        assert (len(looked), set(woken)) == expected[version]


@pytest.mark.parametrize("seed", range(8))
async def test_late_doubled_reordered_and_lost_events_only_delay(seed: int) -> None:
    world = World(steps=80, faults=HOSTILE, random=Random(seed))
    world.apply()
    await world.until(state="Running", step=3, turns=400)
    world.kill_pod("demo-trainer-1")
    await world.until(state="Running", attempt=2, turns=400)
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Succeeded", turns=600)
    s = world.status
    assert s.attempt and (s.attempt.number, s.restarts.total) == (3, 2)


async def test_a_spec_that_stays_the_same_is_kept_once() -> None:
    """When it is shown again with another status: it is a third of what the operator keeps of a job."""
    world = World()
    world.apply()
    await world.until(state="Running")
    cached = world.feed.cache.jobs.get(JOB)
    assert cached and cached.value.object["spec"] is cached.value.validation.raw
    world.edit_spec(image="another:1")
    await world.turn()
    cached = world.feed.cache.jobs.get(JOB)
    assert cached and cached.value.validation.raw["image"] == "another:1"


@pytest.mark.parametrize("value", [True, 1.0], ids=["true", "float"])
def test_a_value_that_python_takes_for_equal_is_another_spec(value: Any) -> None:
    def version(generation: int, of: Any) -> Object:
        meta = {"name": "demo", "namespace": "research", "uid": "u", "resourceVersion": "1", "generation": generation}
        return {"metadata": meta, "spec": {"rollout": {"vllmArgs": {"x": of}}}}

    before = transform(version(1, 1), None, JobPolicy())
    again, changed = (transform(version(*new), before, JobPolicy()) for new in ((1, 1), (2, value)))
    assert again.validation is before.validation
    assert type(changed.validation.raw["rollout"]["vllmArgs"]["x"]) is type(value)


def test_only_short_texts_are_shared_also_as_keys() -> None:
    long = "k" * (SHORT + 1)
    kept = share_texts({long: [long], "a": "b" * SHORT})
    assert kept == {long: [long], "a": "b" * SHORT}
    before = _first.cache_info().currsize
    share_texts({f"{long}{i}": f"{long}{i}" for i in range(5)})
    assert _first.cache_info().currsize == before


def test_what_is_read_is_kept_without_the_names_of_its_fields() -> None:
    """A set of them for each section was a quarter of what the operator keeps of a job."""
    job = make_job().with_attempt()
    spec, status = RLJobSpec.model_validate_json(job.spec.dump_json()), JobStatus.model_validate(job.status.dump())
    assert (spec, status) == (job.spec, job.status)
    sections = (spec, spec.train, spec.trainer, status, status.restarts, status.attempt)
    assert len({id(section.model_fields_set) for section in sections if section}) == 1


def test_a_copy_with_other_fields_keeps_nothing_that_was_computed_of_the_original() -> None:
    spec = make_job().spec
    assert list(spec.pods) == ["trainer", "rollout"] and not spec.gangs
    judged = spec.model_copy(update={"pools": [PoolSpec(name="judge", model="/models/judge")]})
    apart = spec.model_copy(update={"reference": ReferenceSpec(processes_per_node=1), "task": "dpo"})
    assert (list(judged.pods), list(apart.gangs)) == (["trainer", "rollout", "judge"], ["reference"])
    assert (list(spec.pods), spec.gangs) == (["trainer", "rollout"], {})
    assert judged.dump() == spec.dump() | {"pools": judged.dump()["pools"]}
