"""Two installations that serve the same jobs."""

from random import Random

import pytest

from api.specs import raw_spec
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import ApiError, Conflict, Object
from rljob_operator.reconcile.reconciler import Reconciler
from simulator.cluster import FakeCluster
from simulator.feed import PROMPT, Feed
from simulator.late import hold_writes
from simulator.objects import job_object
from simulator.world import NAMESPACE, World

KEY = (NAMESPACE, "demo")


def operating(cluster: FakeCluster) -> Reconciler:
    cache = ClusterCache(lambda: 1000.0)
    Feed(cluster, cache, PROMPT, Random()).deliver()
    return Reconciler(cluster, cache, progress_interval=30, clock=lambda: 1000.0, timer=lambda: 1000.0)


def warnings(cluster: FakeCluster) -> list[Object]:
    return [o for (kind, _, _), o in cluster.objects.items() if kind == "Event" and o["reason"] == "ForeignStatus"]


async def test_a_job_says_that_a_second_operator_acts_on_it() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec()))
    first, second = operating(cluster), operating(cluster)
    await first(KEY)
    assert warnings(cluster) == []
    with pytest.raises(Conflict):
        await second(KEY)
    (warning,) = warnings(cluster)
    assert warning["message"].startswith("somebody else writes the status of this job; if that is another installation")


async def test_users_who_change_their_job_are_no_second_operator() -> None:
    cluster = FakeCluster()
    cluster.put(job_object("demo", raw_spec()))
    operator = operating(cluster)
    cluster.edit("RLJob", NAMESPACE, "demo")["metadata"]["annotations"]["team"] = "a"
    with pytest.raises(Conflict):
        await operator(KEY)
    await operator(KEY)
    assert cluster.objects[("RLJob", NAMESPACE, "demo")]["status"]["state"] == "Pending"
    assert warnings(cluster) == []


class Unanswering(FakeCluster):
    """Does what it is asked, and the answers are lost."""

    lost = 0

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        answer = await super().replace(obj, subresource)
        if self.lost:
            self.lost -= 1
            raise ApiError(0, "the connection was lost")
        return answer


async def test_a_write_whose_answer_was_lost_is_our_own() -> None:
    cluster = Unanswering()
    cluster.put(job_object("demo", raw_spec()))
    operator = operating(cluster)
    cluster.lost = 1
    with pytest.raises(ApiError, match="connection was lost"):
        await operator(KEY)
    with pytest.raises(Conflict):
        await operator(KEY)
    await operator(KEY)
    assert warnings(cluster) == []


async def test_an_operator_that_is_killed_and_started_again_is_no_second_one() -> None:
    for crash_after in range(1, 12):
        world = World(steps=3)
        world.cluster.crash_after = crash_after
        world.apply()
        await world.until(state="Succeeded", turns=60)
        assert warnings(world.cluster) == []


@pytest.mark.parametrize(
    ("backend", "every"),
    [("none", 5), ("builtin", 7), *(pytest.param(one, 1, marks=pytest.mark.slow) for one in ("none", "builtin"))],
)
async def test_a_write_that_arrives_when_a_successor_acts_changes_nothing(backend: str, every: int) -> None:
    """The leader is cut off in the midst of it. No pod is made twice, no restart counts, and no step is lost."""
    answers = await hold_writes(every, scheduling={"backend": backend})
    assert answers["Conflict"] > answers["done"] > 0, "some were too late and some, such as events, harm nobody"
