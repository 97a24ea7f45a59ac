"""Spares get what the rest of the job leaves: nodes of their own if there are any, near rank 0."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.makers import make_cluster, make_gang, make_node, make_pod, make_racks
from rljob_placement.explain import report
from rljob_placement.gang import Gang, Stay
from rljob_placement.plan import plan


def spared(nodes: int, spares: int, rollouts: int = 0, **changes: object) -> Gang:
    return replace(make_gang(nodes, rollouts=rollouts, **changes), spares=spares)


def test_a_spare_is_near_rank_0_and_the_report_says_where() -> None:
    cluster = make_cluster(make_racks([3, 3], racks_per_block=1))
    found = plan(cluster, spared(2, 1))
    (spare,) = found.spares
    assert spare not in found.trainers and spare[:3] == found.trainers[0][:3], "in the same rack"
    assert report(cluster, spared(2, 1), found).spares == [f"b{spare[1]}/r{spare[1]}/{spare}"]


def test_a_node_without_a_trainer_is_better_than_a_nearer_one_with_one() -> None:
    """A node that is lost would take the spare with it."""
    nodes = [make_node("a", 16, block="b0", rack="r0"), make_node("far", 8, block="b1", rack="r1")]
    found = plan(make_cluster(nodes), spared(1, 1))
    assert (found.trainers, found.spares) in ((("a",), ("far",)), (("far",), ("a",)))
    alone = plan(make_cluster(nodes[:1]), spared(1, 1))
    assert alone.spares == ("a",), "which is better than none"


def test_spares_that_do_not_fit_keep_nobody_from_starting() -> None:
    found = plan(make_cluster(make_racks([3])), spared(2, 3))
    assert not found.problem and sorted(bool(node) for node in found.spares) == [False, False, True]


def test_rollouts_come_first() -> None:
    gang = spared(1, 1, rollouts=2)
    found = plan(make_cluster(make_racks([3])), gang)
    assert all(found.rollouts) and found.spares == ("",)


@settings(max_examples=60)
@given(
    racks=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    busy=st.lists(st.integers(0, 15), max_size=6, unique=True),
    trainers=st.integers(1, 4),
    spares=st.integers(0, 4),
    data=st.data(),
)
def test_no_node_holds_more_than_it_can_and_spares_that_are_there_stay(
    racks: list[int], busy: list[int], trainers: int, spares: int, data: st.DataObject
) -> None:
    nodes = make_racks(racks)
    names = [node["metadata"]["name"] for node in nodes]
    cluster = make_cluster(nodes, [make_pod(names[i], 8) for i in busy if i < len(names)])
    gang = spared(trainers, spares)
    found = plan(cluster, gang)
    without = plan(cluster, replace(gang, spares=0))
    assert (found.trainers, found.problem) == (without.trainers, without.problem), (
        "spares change nothing for the others"
    )
    if found.problem:
        return
    used = [*found.trainers, *filter(None, found.spares)]
    free = len(names) - len({i for i in busy if i < len(names)})
    assert len(used) == len(set(used)) == min(free, trainers + spares)
    lost = data.draw(st.sampled_from(found.trainers))
    left = cluster.closing([lost], "lost").without(dict.fromkeys(used, gang.trainer.requests))
    there = {i: node for i, node in enumerate(found.spares) if node}
    again = plan(left, gang, Stay(trainers=[n for n in found.trainers if n != lost], spares=there))
    if not again.problem:
        assert {i: again.spares[i] for i in there} == there
