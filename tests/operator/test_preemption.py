"""Jobs of lower priority leave their nodes to one of higher priority: as few as make room, and they come back."""

from random import Random
from typing import Any

import pytest

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status_parts import Preemption
from rljob_operator.cache.pods import parse_pod
from rljob_operator.kube.api import ApiError
from rljob_operator.times import stamp
from simulator.cluster import Crash
from simulator.controllers import sync_stateful_sets
from simulator.crowd import Crowd
from simulator.site import NAMESPACE


def condition(status: Any, kind: str) -> Any:
    return next(c for c in status.conditions if c.type == kind)


def running(crowd: Crowd) -> dict[str, int]:
    """Number of pods on nodes, of jobs that have any."""
    return {job: len(there) for job in crowd.jobs() if (there := crowd.on_nodes(job))}


def preempted(crowd: Crowd) -> set[str]:
    return {job for job in crowd.jobs() if crowd.status(job).preemption}


async def test_a_job_of_higher_priority_takes_the_nodes_of_a_lower_one_which_comes_back() -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("low", trainers=3)
    await crowd.turns(5)
    assert running(crowd) == {"low": 4}
    crowd.apply("high", trainers=1, priority=10)
    await crowd.turns(20)
    assert running(crowd) == {"high": 2}
    status = crowd.status("low")
    assert status.preemption == Preemption(by=f"{NAMESPACE}/high", since=status.preemption.since, released=True)
    assert condition(status, "Preempted").message.endswith(
        "to research/high, which has a higher priority or has reserved them"
    )
    assert "left its nodes to research/high" in status.message
    assert not status.suspended and "suspend" not in crowd.cluster.objects[(names.KIND, NAMESPACE, "low")]["spec"]
    crowd.delete("high")
    await crowd.turns(20)
    assert running(crowd) == {"low": 4}


async def test_the_youngest_of_the_lowest_priority_leave_and_no_more_than_needed() -> None:
    crowd = Crowd(dict.fromkeys("abcdef", 2))
    for name, priority in (("old-low", 1), ("young-low", 1), ("middle", 5)):
        crowd.apply(name, trainers=3, priority=priority)
        await crowd.turns(3)
    assert len(running(crowd)) == 3, "the cluster is full"
    crowd.apply("high", trainers=2, priority=10)
    await crowd.turns(20)
    assert set(running(crowd)) == {"old-low", "middle", "high"}
    assert preempted(crowd) == {"young-low"}


async def test_who_holds_none_of_the_nodes_is_spared() -> None:
    crowd = Crowd({"small": 2, "large": 8})
    crowd.apply("on-large", trainers=7)
    await crowd.turns(3)
    crowd.apply("on-small", trainers=1)
    await crowd.turns(3)
    crowd.apply("high", trainers=5, priority=1)
    await crowd.turns(20)
    assert preempted(crowd) == {"on-large"}, "the youngest, but on the wrong node"


@pytest.mark.parametrize(
    ("trainers", "priority", "scheduling"),
    [(9, 10, {}), (1, 0, {}), (1, -1, {}), (1, 10, {"preemptionPolicy": "Never"})],
    ids=["that does not fit at all", "of the same priority", "of lower priority", "that must not"],
)
async def test_nobody_leaves_for_a_job(trainers: int, priority: int, scheduling: dict[str, Any]) -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("running", trainers=3)
    await crowd.turns(5)
    crowd.apply("waiting", trainers=trainers, scheduling={"backend": "builtin", "priority": priority} | scheduling)
    await crowd.turns(20)
    assert running(crowd) == {"running": 4} and not preempted(crowd)


async def test_a_priority_class_that_never_preempts_is_honoured() -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("running", trainers=3)
    await crowd.turns(5)
    put = crowd.cluster.put

    def admitted(obj: Any) -> Any:
        """As the API server's admission, which copies it from the PriorityClass."""
        if obj["kind"] == "Pod" and obj["spec"].get("priorityClassName") == "polite":
            obj["spec"]["preemptionPolicy"] = "Never"
        return put(obj)

    crowd.cluster.put = admitted  # type: ignore[method-assign]
    polite = {"device": "cpu", "nodes": 1, "template": {"priorityClassName": "polite"}}
    crowd.apply("waiting", trainers=1, priority=10, trainer=polite)
    await crowd.turns(20)
    (pod, *_) = (p for p in crowd.cluster.pods(NAMESPACE) if p["metadata"]["name"] == "waiting-trainer-0")
    assert not parse_pod(pod).preempts
    assert running(crowd) == {"running": 4} and not preempted(crowd)


async def test_nobody_leaves_for_pods_that_cannot_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a ResourceQuota that is used up. Their PriorityClass, which may be one that never preempts, is not known either."""
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("running", trainers=3)
    await crowd.turns(5)

    def refusing(cluster: Any) -> None:
        sync_stateful_sets(cluster)
        for pod in [p for p in cluster.pods(NAMESPACE) if p["metadata"]["name"] == "waiting-rollout-0"]:
            cluster.remove(pod)

    monkeypatch.setattr("simulator.crowd.sync_stateful_sets", refusing)
    crowd.apply("waiting", trainers=1, priority=10)
    await crowd.turns(20)
    assert running(crowd) == {"running": 4} and not preempted(crowd)
    monkeypatch.undo()
    await crowd.turns(20)
    assert running(crowd) == {"waiting": 2} and preempted(crowd) == {"running"}


def keep_pods(crowd: Crowd, job: str) -> None:
    """The job's pods on nodes do not end any more."""
    remove = crowd.cluster.remove

    def removed(obj: Any) -> None:
        if obj["kind"] != "Pod" or not obj["metadata"]["name"].startswith(job) or not obj["spec"].get("nodeName"):
            remove(obj)
        elif "deletionTimestamp" not in obj["metadata"]:
            meta = crowd.cluster.edit("Pod", NAMESPACE, obj["metadata"]["name"])["metadata"]
            meta["deletionTimestamp"] = stamp(crowd.now)

    crowd.cluster.remove = removed  # type: ignore[method-assign]


async def test_what_never_ends_is_not_waited_for() -> None:
    """A pod whose process hangs in the kernel would otherwise keep everybody from preempting."""
    crowd = Crowd({"a": 2, "b": 2})
    for name in ("hanging", "low"):
        crowd.apply(name, trainers=1)
        await crowd.turns(4)
    keep_pods(crowd, "hanging")
    crowd.cluster.edit(names.KIND, NAMESPACE, "hanging")["spec"]["suspend"] = True
    await crowd.turns(3)
    crowd.apply("high", trainers=1, priority=10)
    await crowd.turns(60)
    assert running(crowd) == {"hanging": 2, "low": 2} and not preempted(crowd), "it may still end"
    await crowd.turns(LifecycleSpec().node_loss_seconds + 300)
    assert running(crowd) == {"hanging": 2, "high": 2} and preempted(crowd) == {"low"}


async def test_a_job_with_an_invalid_spec_leaves_as_others_do() -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("low", trainers=3)
    await crowd.turns(5)
    spec = crowd.cluster.edit(names.KIND, NAMESPACE, "low")["spec"]
    spec["nonsense"] = 1
    await crowd.turns(3)
    assert running(crowd) == {"low": 4}
    crowd.apply("high", trainers=1, priority=10)
    await crowd.turns(30)
    assert running(crowd) == {"high": 2} and preempted(crowd) == {"low"}


async def test_jobs_that_can_never_fit_do_not_keep_others_from_preempting() -> None:
    crowd = Crowd({"a": 2, "b": 2})
    crowd.apply("low", trainers=3)
    await crowd.turns(5)
    for i in range(6):
        crowd.apply(f"huge-{i}", trainers=20 + i, priority=10)
    await crowd.turns(5)
    crowd.apply("high", trainers=1, priority=10)
    await crowd.turns(20)
    assert running(crowd) == {"high": 2} and preempted(crowd) == {"low"}


@pytest.mark.parametrize("limit", [4, 0], ids=["alone", "behind others that were tried in vain"])
async def test_what_the_first_victim_frees_waits_for_the_second(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first would take its own nodes again, and leave them again."""
    crowd = Crowd(dict.fromkeys("ab", 2), lingering=True)
    crowd.apply("first", trainers=1)
    await crowd.turns(3)
    crowd.apply("second", trainers=1)
    await crowd.turns(3)
    crowd.apply("high", trainers=3, priority=10)
    left = set[str]()
    for _ in range(30):
        await crowd.turn()
        if preempted(crowd):
            monkeypatch.setattr("rljob_operator.schedulers.builtin.cycle.MOST_CLAIMS", limit)
        for pod in crowd.cluster.pods(NAMESPACE):  # the second takes its time
            slow = pod["metadata"]["name"].startswith("second") and crowd.elapsed < 25
            if "deletionTimestamp" in pod["metadata"] and not slow:
                crowd.cluster.remove(pod)
        left |= {"first"} if "first" not in running(crowd) and preempted(crowd) else set()
        assert not ("first" in left and "first" in running(crowd)), "it has come back"
    assert running(crowd) == {"high": 4}
    assert preempted(crowd) == {"first", "second"}


@pytest.mark.parametrize("seed", range(6))
async def test_at_the_end_of_any_history_the_highest_priorities_run(seed: int) -> None:
    random = Random(seed)
    nodes = {f"n{i}": 2 for i in range(6)}
    crowd = Crowd(nodes, random=Random(seed))
    for i in range(10):
        crowd.apply(f"job-{i}", trainers=random.randint(1, 4), priority=random.choice([0, 0, 5, 10]))
        for _ in range(random.randint(1, 8)):
            await disturbed(crowd, random)
    for _ in range(60):
        await crowd.turn()
        crowd.check_capacity()
    specs = {job: crowd.cluster.objects[(names.KIND, NAMESPACE, job)]["spec"] for job in crowd.jobs()}
    sizes = {job: spec["trainer"]["nodes"] + 1 for job, spec in specs.items()}
    priorities = {job: spec["scheduling"]["priority"] for job, spec in specs.items()}
    there = running(crowd)
    assert all(there[job] == sizes[job] for job in there), "whole gangs"
    free = sum(nodes.values()) - sum(there.values())
    for job in specs.keys() - there.keys():
        below = sum(sizes[other] for other in there if priorities[other] < priorities[job])
        assert sizes[job] > free + below, f"{job} waits although lower ones run"


async def disturbed(crowd: Crowd, random: Random) -> None:
    """A turn in which a job may end, a pod vanish or the operator die."""
    what = random.random()
    if what < 0.05 and len(crowd.jobs()) > 2:
        crowd.delete(random.choice(crowd.jobs()))
    elif what < 0.1:
        crowd.restart_operator()
    elif what < 0.2:
        crowd.cluster.crash_after = len(crowd.cluster.writes) + random.randint(1, 4)
    elif what < 0.3 and (pods := crowd.cluster.pods(NAMESPACE)):
        crowd.cluster.remove(random.choice(pods))
    try:
        await crowd.turn()
    except (Crash, ApiError):
        crowd.restart_operator()
    crowd.check_capacity()


def test_the_policy_is_that_of_a_priority_class() -> None:
    assert RLJobSpec.model_fields["scheduling"].default.preemption_policy == "PreemptLowerPriority"
