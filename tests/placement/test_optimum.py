"""Plans against an exhaustive search, on clusters small enough for one."""

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.makers import GPU, bare_gang, make_cluster, make_gang, make_node, make_pod, make_racks
from rljob_api.sizing.traffic import Link
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang, Placement, Stay
from rljob_placement.plan import plan
from rljob_placement.space import FACTOR

WITHIN = 1.05


def price(cluster: Cluster, gang: Gang, names: tuple[str, ...]) -> float:
    """Written anew, so that it does not share a mistake with the planner."""
    labels = {n.name: [*(n.labels[level] for level in gang.levels), n.name] for n in cluster.nodes}
    total = 0.0
    for link in gang.links:
        one, other = labels[names[link.one]], labels[names[link.other]]
        for depth, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                total += link.bytes * FACTOR ** (len(gang.levels) - depth)
                break
    return total


def fits(cluster: Cluster, gang: Gang, names: tuple[str, ...], stay: Stay) -> bool:
    """Every node has the GPUs, and whoever stays is where he was."""
    free = {n.name: n.free[GPU] // 1000 for n in cluster.nodes}
    left = list(stay.trainers)
    for i, name in enumerate(names):
        if i < gang.trainers and name in left:
            left.remove(name)
        elif i in stay.ranks:
            if stay.ranks[i] != name:
                return False
        elif i - gang.trainers in stay.rollouts:
            if stay.rollouts[i - gang.trainers] != name:
                return False
        else:
            free[name] -= (gang.trainer if i < gang.trainers else gang.rollout).requests[GPU] // 1000
    return not left and min(free.values()) >= 0


def all_placements(cluster: Cluster, gang: Gang, stay: Stay) -> Iterator[tuple[str, ...]]:
    names = [n.name for n in cluster.nodes]
    for chosen in itertools.product(names, repeat=gang.trainers + gang.minimum):
        if fits(cluster, gang, chosen, stay):
            yield chosen


@st.composite
def situations(draw: st.DrawFn) -> tuple[Cluster, Gang, Stay]:
    """Up to six nodes in a tree of two levels, up to five pods with any links, some pods already there."""
    places = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=6))
    free = draw(st.lists(st.sampled_from([0, 2, 4, 8]), min_size=len(places), max_size=len(places)))
    nodes = [
        make_node(f"n{i}", g, block=f"b{b}", rack=f"r{r}")
        for i, ((b, r), g) in enumerate(zip(places, free, strict=True))
    ]
    trainers, rollouts = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    pairs = list(itertools.combinations(range(trainers + rollouts), 2))
    volumes = draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0]), min_size=len(pairs), max_size=len(pairs)))
    links = [Link("data", a, b, v) for (a, b), v in zip(pairs, volumes, strict=True) if v]
    gpus = draw(st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3])))
    there = draw(st.lists(st.sampled_from([n["metadata"]["name"] for n in nodes]), max_size=trainers))
    first = {0: draw(st.sampled_from(nodes))["metadata"]["name"]} if rollouts and draw(st.booleans()) else {}
    stay = Stay(trainers=there, rollouts=first)
    if len(there) == trainers and draw(st.booleans()):
        stay = Stay(ranks=dict(enumerate(there)), rollouts=first)
    return make_cluster(nodes), bare_gang(trainers, rollouts, gpus, links, ["block", "rack"]), stay


@settings(max_examples=150)
@given(situations())
def test_no_plan_is_worse_than_five_per_cent_above_the_optimum(situation: tuple[Cluster, Gang, Stay]) -> None:
    cluster, gang, stay = situation
    best = min((price(cluster, gang, p) for p in all_placements(cluster, gang, stay)), default=None)
    found = plan(cluster, gang, stay)
    if best is None:
        assert found.problem and not found.trainers
        return
    assert not found.problem, "there is a placement"
    names = found.trainers + found.rollouts
    assert fits(cluster, gang, names, stay)
    assert price(cluster, gang, names) <= WITHIN * best + 1e-9
    assert abs(price(cluster, gang, names) - found.cost) <= 1e-6 * found.cost


def stage_plan(sizes: list[int], busy: int, pipeline: int, **changes: int) -> tuple[Placement, Gang, Cluster]:
    nodes = make_racks(sizes)
    cluster = make_cluster(nodes, [make_pod(n["metadata"]["name"], 8) for n in nodes[:busy]])
    gang = make_gang(8, pipeline, **changes)
    return plan(cluster, gang), gang, cluster


def test_a_stage_that_fits_into_a_rack_is_not_cut() -> None:
    """Six free nodes in one rack would hold more, and would cut a stage."""
    found, _, cluster = stage_plan([6, 4, 4], 0, 2)
    rack = {n.name: n.labels["rack"] for n in cluster.nodes}
    assert [len({rack[name] for name in found.trainers[i : i + 4]}) for i in (0, 4)] == [1, 1]


def test_a_gang_that_fits_into_one_rack_takes_the_tightest() -> None:
    found, _, _ = stage_plan([12, 9, 10], 0, 2)
    assert {name.split("-")[0] for name in found.trainers} == {"n1"}
