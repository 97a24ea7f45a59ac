"""A gang that has to be in one domain of a topology level: it gets nodes of one, or waits."""

from dataclasses import replace
from random import Random

import pytest

from placement.makers import make_cluster, make_gang, make_pod, make_racks
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang, Placement, Stay
from rljob_placement.plan import plan

RACK, BLOCK = 2, 1
"""Levels that are shared, of block and rack."""


def within(levels: int, nodes: int, **changes: object) -> Gang:
    return replace(make_gang(nodes, **changes), within=levels)  # type: ignore[arg-type]


def racks(cluster: Cluster, found: Placement) -> set[str]:
    return {node.labels["rack"] for node in cluster.nodes if node.name in found.nodes()}


def test_a_gang_that_fits_only_across_racks_waits_if_one_is_required_and_says_so() -> None:
    cluster = make_cluster(make_racks([2, 3, 2]))
    assert len(racks(cluster, plan(cluster, make_gang(4)))) == 2
    problem = plan(cluster, within(RACK, 4)).problem
    assert problem.startswith("no rack has capacity for the whole gang: needs capacity for 4 trainer pods")
    assert "the cluster has it for 3" in problem, "it speaks of the domain with the most"
    assert racks(cluster, plan(cluster, within(BLOCK, 4))) == {"r0", "r1"}


def test_the_fullest_rack_that_holds_it_is_taken() -> None:
    cluster = make_cluster(make_racks([4, 2, 3]), [make_pod("n0-0", 8)])
    assert racks(cluster, plan(cluster, within(RACK, 2))) == {"r1"}
    assert racks(cluster, plan(cluster, within(RACK, 2, rollouts=1))) in ({"r0"}, {"r2"})


def test_rollouts_beyond_the_minimum_and_spares_stay_in_the_domain() -> None:
    cluster = make_cluster(make_racks([3, 3]))
    gang = replace(within(RACK, 2, rollouts=1), rollouts=4, spares=1)
    found = plan(cluster, gang)
    assert not found.problem and len(racks(cluster, found)) == 1
    assert found.rollouts[1:] == ("", "", "") and found.spares == ("",)


@pytest.mark.parametrize("there", ["n0-0", "n1-2"])
def test_what_is_replaced_goes_where_the_others_are(there: str) -> None:
    cluster = make_cluster(make_racks([2, 3]), [make_pod(there, 8)])
    found = plan(cluster, within(RACK, 2), Stay(trainers=(there,)))
    assert racks(cluster, found) == {f"r{there[1]}"} and there in found.trainers


def test_nodes_without_the_label_are_in_no_domain() -> None:
    bare = [node | {"metadata": {"name": f"x{i}", "labels": {}}} for i, node in enumerate(make_racks([3]))]
    assert (
        plan(make_cluster(bare), within(RACK, 2)).problem
        == "no rack has capacity for the whole gang: no node has its label"
    )


def test_a_rack_is_found_exactly_if_there_is_one() -> None:
    random = Random(1)
    for _ in range(60):
        sizes = [random.randint(0, 3) for _ in range(4)]
        cluster, wanted = make_cluster(make_racks(sizes)), random.randint(1, 3)
        found = plan(cluster, within(RACK, wanted))
        assert (not found.problem) is (max(sizes) >= wanted)
        assert found.problem or len(racks(cluster, found)) == 1
