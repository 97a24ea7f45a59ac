"""Servers of several pods: each whole or not at all, in the narrowest domain that has capacity."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from api.specs import make_spec
from placement.makers import make_cluster, make_gang, make_node, make_pod, make_racks
from rljob_placement.explain import report
from rljob_placement.gang import Gang, Placement, Stay
from rljob_placement.plan import plan


def gang_of(servers: int, nodes: int, minimum: int | None = None, trainers: int = 1) -> Gang:
    """Pods of 8 GPUs."""
    least = servers if minimum is None else minimum
    pool = {"replicas": servers, "minReplicas": least, "nodes": nodes, "tensorParallel": 8, "pipelineParallel": nodes}
    return make_gang(trainers, rollout=pool)


def servers(found: Placement, nodes: int) -> list[tuple[str, ...]]:
    return [found.rollouts[i : i + nodes] for i in range(0, len(found.rollouts), nodes)]


def racks(found: Placement, nodes: int) -> list[set[str]]:
    return [{name.partition("-")[0] for name in server} for server in servers(found, nodes)]


def test_each_is_in_the_narrowest_domain_with_capacity_and_the_nearest_of_them() -> None:
    cluster = make_cluster(make_racks([3, 2, 4]))
    gang = gang_of(3, 2)
    found = plan(cluster, gang)
    assert found.trainers == ("n0-0",) and racks(found, 2) == [{"n0"}, {"n1"}, {"n2"}]
    assert report(cluster, gang, found).rollouts == ["b0/r0", "b0/r1", "b1/r2"]


def test_one_that_fits_no_rack_is_in_one_block_and_one_that_fits_no_block_in_the_cluster() -> None:
    cluster = make_cluster(make_racks([2, 3, 2, 2]))
    found = plan(cluster, gang_of(1, 4))
    assert racks(found, 4) in ([{"n0", "n1"}], [{"n2", "n3"}])
    found = plan(cluster, gang_of(1, 6))
    assert not found.problem and "" not in found.rollouts
    assert report(cluster, gang_of(1, 6), found).rollouts == ["the whole cluster"]


def test_of_domains_that_are_equally_near_the_fullest_is_taken() -> None:
    found = plan(make_cluster(make_racks([1, 4, 3, 2], racks_per_block=4)), gang_of(1, 2))
    assert found.trainers == ("n0-0",) and racks(found, 2) == [{"n3"}]


def test_a_job_without_capacity_for_a_whole_server_of_the_minimum_gets_no_node() -> None:
    found = plan(make_cluster(make_racks([2, 2])), gang_of(2, 2))
    assert (found.trainers, found.rollouts) == ((), ())
    assert found.problem.startswith("alongside the job's other pods needs capacity for 4 rollout pods")


def test_one_beyond_the_minimum_gets_all_of_its_nodes_or_none() -> None:
    found = plan(make_cluster(make_racks([2, 2])), gang_of(3, 2, minimum=1))
    assert Counter(map(bool, found.rollouts)) == {True: 2, False: 4}
    assert servers(found, 2)[1:] == [("", ""), ("", "")]
    found = plan(make_cluster(make_racks([3, 2])), gang_of(3, 2, minimum=1))
    assert [all(server) for server in servers(found, 2)] == [True, True, False]


def test_a_replacement_goes_beside_the_pods_that_stay() -> None:
    others = [make_pod("n2-0", 8), make_pod("n1-0", 8)]
    cluster = make_cluster(make_racks([3, 2, 2], racks_per_block=1), others)
    stay = Stay(ranks={0: "n2-0"}, rollouts={0: "n1-0"})
    found = plan(cluster, gang_of(1, 2), stay)
    assert found.rollouts == ("n1-0", "n1-1"), "in the rack of the one that stays, not in that of the trainer"
    full = make_cluster(make_racks([3, 1, 2], racks_per_block=1), others)
    assert plan(full, gang_of(1, 2), stay).rollouts == ("n1-0", "n0-0"), "else in the widest domain"
    wide = make_cluster(make_racks([3, 2, 3]), others)
    found = plan(wide, gang_of(1, 3), stay)
    assert found.rollouts == ("n1-0", "n1-1", "n0-0"), "as many as fit in the rack, and the others in its block"


def test_pools_have_them_too() -> None:
    pool = {"name": "judge", "model": "/m", "nodes": 2, "tensorParallel": 16, "replicas": 2}
    trainer = {"device": "gpu", "nodes": 1, "processesPerNode": 8, "parallelism": {"tensor": 8}}
    spec = make_spec(
        trainer=trainer,
        pools=[pool],
        rewards=[{"vllm": {"pool": "judge"}}],
        scheduling={"topologyLevels": ["block", "rack"]},
        rollout={"tensorParallel": 8},
    )
    gang, cluster = Gang.of(spec), make_cluster(make_racks([2, 2, 2]))
    found = plan(cluster, gang)
    assert [{n[:2] for n in found.pools["judge"][i : i + 2]} for i in (0, 2)] == [{"n1"}, {"n2"}]
    assert report(cluster, gang, found).pools == {"judge": ["b0/r1", "b1/r2"]}


@settings(max_examples=80)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(2, 4)),
    extra=st.integers(0, 2),
)
def test_the_minimum_is_placed_whenever_it_fits_and_no_node_is_overbooked(
    sizes: Sequence[int], shape: tuple[int, int, int], extra: int
) -> None:
    trainers, minimum, nodes = shape
    cluster = make_cluster(make_racks(sizes))
    gang = gang_of(minimum + extra, nodes, minimum, trainers)
    found = plan(cluster, gang)
    assert bool(found.problem) == (sum(sizes) < trainers + minimum * nodes)
    if found.problem:
        return
    taken = Counter([*found.trainers, *filter(None, found.rollouts)])
    assert max(taken.values()) == 1
    whole = [all(server) for server in servers(found, nodes)]
    assert [any(server) for server in servers(found, nodes)] == whole, "whole or not at all"
    assert whole == [i < (sum(sizes) - trainers) // nodes for i in range(minimum + extra)]


def test_many_are_planned_in_a_second() -> None:
    """Four pods each, beside a gang of 64 on 512 nodes."""
    cluster = make_cluster([make_node(f"x{i}", 8, block=f"b{i // 64}", rack=f"r{i // 16}") for i in range(512)])
    found = plan(cluster, gang_of(96, 4, trainers=64))
    assert not found.problem and len(set(found.rollouts)) == 384
    assert all(len({int(name[1:]) // 16 for name in server}) == 1 for server in servers(found, 4))
