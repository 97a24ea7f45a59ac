"""Pools next to a gang: all of it or nothing, near rank 0, and in whichever order there is capacity."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.makers import GPU, bare_gang, make_cluster, make_gang, make_node, make_pod, make_racks
from rljob_placement.cluster import Cluster
from rljob_placement.explain import report
from rljob_placement.gang import Demand, Gang, Placement, Pool, Stay
from rljob_placement.plan import plan


def pool(name: str, replicas: int, gpus: int) -> Pool:
    return Pool(name, replicas, Demand({GPU: 1000 * gpus, "pods": 1000}, {}))


def used(gang: Gang, found: Placement) -> Counter[str]:
    """GPUs by node."""
    count: Counter[str] = Counter()
    for node, demand in found.newcomers(gang, Stay()):
        count[node] += demand.requests[GPU] // 1000
    return count


def test_servers_take_what_the_gang_leaves_next_to_rank_0_and_the_fullest_nodes_first() -> None:
    others = [make_pod("n0-1", 4), make_pod("n0-2", 6), make_pod("n1-0", 6)]
    cluster = make_cluster(make_racks([3, 2], racks_per_block=1), others)
    gang = make_gang(1, template={"nodeSelector": {"kubernetes.io/hostname": "n0-0"}})
    gang = replace(gang, pools=(pool("judge", 1, 4), pool("teacher", 3, 2)))
    found = plan(cluster, gang)
    assert found.trainers == ("n0-0",)
    assert found.pools == {"judge": ("n0-1",), "teacher": ("n0-2", "n1-0", "n1-1")}
    assert report(cluster, gang, found).pools == {
        "judge": ["b0/r0/n0-1"],
        "teacher": ["b0/r0/n0-2", "b1/r1/n1-0", "b1/r1/n1-1"],
    }


def test_a_job_whose_pool_has_no_room_gets_no_node_at_all() -> None:
    gang = replace(make_gang(1), pools=(pool("judge", 3, 8),))
    found = plan(make_cluster(make_racks([3])), gang)
    assert (found.trainers, found.rollouts, found.pools) == ((), (), {})
    assert found.problem.startswith(
        "alongside the job's other pods needs capacity for 3 judge pods with 8 nvidia.com/gpu each and the cluster has it for 2; "
    )


def test_a_pool_comes_before_a_gang_that_would_take_its_only_node() -> None:
    """The pool may run on the tainted node only, which is the gang's narrowest fit."""
    nodes = [make_node("a", 8, block="b", rack="r", kind="x"), make_node("b", 16, block="b", rack="r")]
    own = Pool("judge", 1, Demand({GPU: 8000, "pods": 1000}, {"kind": "x"}))
    gang = replace(make_gang(2), pools=(own,))
    found = plan(make_cluster(nodes), gang)
    assert found.pools == {"judge": ("a",)} and found.trainers == ("b", "b")


def test_further_rollouts_get_what_pools_leave() -> None:
    gang = replace(make_gang(1, rollouts=3), minimum=1, pools=(pool("judge", 1, 8),))
    found = plan(make_cluster(make_racks([4])), gang)
    assert len(found.pools["judge"]) == 1 and found.rollouts.count("") == 1
    assert len({*found.trainers, *found.pools["judge"], *filter(None, found.rollouts)}) == 4


def test_servers_that_stay_take_no_room_and_keep_their_nodes() -> None:
    cluster = make_cluster(make_racks([2]), [make_pod("n0-0", 8)])
    gang = replace(make_gang(1), pools=(pool("judge", 1, 8),))
    assert plan(cluster, gang).problem
    found = plan(cluster, gang, Stay(pools={"judge": {0: "n0-0"}}))
    assert (found.pools["judge"], found.trainers) == (("n0-0",), ("n0-1",))
    assert list(found.newcomers(gang, Stay(pools={"judge": {0: "n0-0"}}))) == [("n0-1", gang.trainer)]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    gang=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(1, 4)),
    pools=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2),
)
def test_no_node_is_overbooked_and_pods_of_one_size_are_placed_whenever_they_fit(
    sizes: list[int], gang: tuple[int, int, int, int], pools: list[tuple[int, int]]
) -> None:
    trainers, rollouts, *gpus = gang
    cluster: Cluster = make_cluster([make_node(f"n{i}", size) for i, size in enumerate(sizes)])
    whole = replace(
        bare_gang(trainers, rollouts, (gpus[0], gpus[1]), [], []),
        pools=tuple(pool(f"p{i}", *amounts) for i, amounts in enumerate(pools)),
    )
    found = plan(cluster, whole)
    if not found.problem:
        assert all(count <= sizes[int(name[1:])] for name, count in used(whole, found).items())
        assert [len(found.pools[p.name]) for p in whole.pools] == [p.replicas for p in whole.pools]
    if len({*gpus, *(size for _, size in pools)}) == 1:
        count = trainers + rollouts + sum(replicas for replicas, _ in pools)
        assert bool(found.problem) == (sum(size // gpus[0] for size in sizes) < count)
