"""What is found by domains is what a look at all nodes and all pods finds, and takes steps in proportion to the pods and the nodes."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement import cluster, gang
from placement.makers import bare_gang, make_cluster, make_node
from rljob_api.sizing.traffic import Link
from rljob_placement import improve as improving
from rljob_placement import quotas as counting
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang
from rljob_placement.improve import EPSILON, improve
from rljob_placement.nearest import NearestNodes
from rljob_placement.plan import plan
from rljob_placement.quotas import quotas
from rljob_placement.space import Domain, PlacementProblem, Places, space
from rljob_placement.start import _chosen


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    """Any gang on any cluster of up to two levels, of which some trainers and rollouts may stay."""
    levels = draw(st.sampled_from([(), ("rack",), ("block", "rack")]))
    sizes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=14))
    nodes = [
        make_node(f"n{i}", size, block=f"b{draw(st.integers(0, 1))}", rack=f"r{draw(st.integers(0, 2))}")
        for i, size in enumerate(sizes)
    ]
    trainers, rollouts = draw(st.integers(1, 12)), draw(st.integers(0, 60))
    pairs = st.tuples(*[st.integers(0, trainers + rollouts - 1)] * 2, st.sampled_from([0.0, 0.1, 1.0, 3.0, 7.5]))
    links = [Link("data", a, b, volume) for a, b, volume in draw(st.lists(pairs, max_size=80)) if a != b]
    chain = [0, *range(trainers, trainers + rollouts)]
    links += [Link("weights", a, b, 2.0) for a, b in pairwise(chain)] if draw(st.booleans()) else []
    wanted = bare_gang(trainers, rollouts, (draw(st.integers(1, 3)), draw(st.integers(1, 2))), links, levels)
    names = [node["metadata"]["name"] for node in nodes]
    kept = dict.fromkeys(draw(st.sets(st.sampled_from(names), max_size=min(3, trainers))), 1)
    numbers = st.integers(0, rollouts - 1) if rollouts else st.nothing()
    staying = draw(st.dictionaries(numbers, st.sampled_from(names), max_size=min(3, rollouts)))
    s = space(make_cluster(nodes), wanted, kept, (), staying.values())
    number = {node.name: n for n, node in enumerate(s.nodes)}
    return PlacementProblem.of(s, wanted, {trainers + i: number[name] for i, name in staying.items()})


def begun(problem: PlacementProblem, random: Random) -> Places | None:
    """The trainers on nodes where they fit, those of the minimum that stay included; None: they do not."""
    places = Places.empty(problem)
    for n, kept in enumerate(problem.space.kept):
        for _ in range(kept):
            places.put(places.of.index(-1), n)
    for pod in range(problem.trainers):
        free = [n for n in range(len(problem.space.nodes)) if places.has_capacity(pod, n)]
        if places.of[pod] >= 0:
            continue
        if not free:
            return None
        places.put(pod, random.choice(free))
    return places


def scanned_nearest(places: Places, pod: int) -> bool:
    problem = places.problem
    free = [n for n in range(len(problem.space.nodes)) if places.has_capacity(pod, n)]

    def preference(n: int) -> tuple[float, int]:
        left = problem.space.capacity[n][0] - places.rollouts.get(n, 0) - places.trainers.get(n, 0)
        return problem.at(pod, n, places.of), left

    if free:
        places.put(pod, min(free, key=preference))
    return bool(free)


@settings(max_examples=100)
@given(problems(), st.randoms(use_true_random=False))
def test_the_nearest_node_is_the_one_that_a_look_at_all_nodes_finds(problem: PlacementProblem, random: Random) -> None:
    places = begun(problem, random)
    if places is None:
        return
    other, nearest = places.copy(), NearestNodes(places)
    for pod in range(problem.trainers, problem.pods):
        if places.of[pod] < 0:
            assert nearest.put(pod) == scanned_nearest(other, pod)
            assert places.of == other.of


class Scanning(improving.Improvement):
    """Looks at all pods and all nodes."""

    def _partners(self, pod: int) -> list[int]:
        problem, of, paths = self._problem, self._places.of, self._space.paths
        kind = range(problem.trainers) if problem.is_trainer(pod) else range(problem.trainers, problem.pods)
        free = [other for other in kind if other != pod and other not in problem.fixed]
        if problem.pods <= improving.ALL_PAIRS:
            return free
        wanted = {paths[of[other]]: improving.NEIGHBOURS for other, _ in problem.near[pod]}
        wanted.pop(paths[of[pod]], None)
        found = []
        for other in free:
            left = wanted.get(paths[of[other]], 0)
            if left:
                wanted[paths[of[other]]] = left - 1
                found.append(other)
        return found

    def _move(self, pod: int) -> bool:
        problem, places = self._problem, self._places
        if not places.may_leave(pod):
            return False
        start = places.take(pod)
        used = {places.of[other] for other, _ in problem.near[pod]}
        wanted = {problem.space.paths[n] for n in used if n >= 0}
        best, chosen = problem.at(pod, start, places.of) * (1 - EPSILON), start
        tried: set[tuple[str, ...]] = set()
        for n, path in enumerate(problem.space.paths):
            if (path in tried and n not in used) or (path not in wanted and problem.pods > improving.ALL_PAIRS):
                continue
            if n == start or not places.has_capacity(pod, n):
                continue
            tried.add(path)
            cost = problem.at(pod, n, places.of)
            if cost < best:
                best, chosen = cost, n
        places.put(pod, chosen)
        return chosen != start

    def _moved(self, pod: int, before: int) -> None:
        pass


@settings(max_examples=100)
@given(problems(), st.randoms(use_true_random=False), st.sampled_from([0, 100]))
def test_a_placement_is_improved_as_by_a_look_at_all_pods_and_nodes(
    problem: PlacementProblem, random: Random, small: int
) -> None:
    """`small`: pods of a gang for which every exchange is tried."""
    places = begun(problem, random)
    if places is None or not all(scanned_nearest(places, p) for p in range(problem.pods) if places.of[p] < 0):
        return
    results = []
    for kind in (improving.Improvement, Scanning):
        problem.looked, copy = 0, places.copy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(improving, "Improvement", kind)
            patch.setattr(improving, "ALL_PAIRS", small)
            patch.setattr(improving, "NEIGHBOURS", 2)
            improve(copy, 20_000)
        results.append((copy.of, problem.looked))
    assert results[0] == results[1]


def scanned_domains(domains: list[Domain], usable: dict[int, int], wanted: int) -> Iterator[tuple[Domain, int]]:
    left = [d for d in domains if d.capacity]
    while wanted:
        whole = [d for d in left if usable[id(d)] >= wanted]
        chosen = min(whole, key=lambda d: (-d.kept, d.capacity)) if whole else None
        chosen = chosen or max(left, key=lambda d: (d.kept > 0, usable[id(d)]))
        count = min(wanted, usable[id(chosen)])
        yield chosen, count
        left.remove(chosen)
        wanted -= count


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=9), st.integers(1, 3), st.data())
def test_domains_are_chosen_as_by_a_look_at_all_of_them(sizes: list[Any], unit: int, data: st.DataObject) -> None:
    domains = [Domain(str(i), capacity=size, kept=kept) for i, (size, kept) in enumerate(sizes)]
    usable = {id(d): d.capacity // unit * unit for d in domains}
    wanted = data.draw(st.integers(0, sum(usable.values())))
    found, expected = (list(of(domains, usable, wanted)) for of in (_chosen, scanned_domains))
    assert [(d.name, count) for d, count in found if count] == [(d.name, count) for d, count in expected if count]


@settings(max_examples=100)
@given(problems())
def test_a_gang_of_which_a_bound_says_that_it_does_not_fit_does_not(problem: PlacementProblem) -> None:
    found = quotas(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "_most_rollouts", lambda rows, trainers: 10**6)
        assert quotas(problem) == found


def steps(nodes: Cluster, wanted: Gang, fits: bool) -> int:
    """Calls and turns of loops of a plan, which has to succeed or not."""
    count, monitoring = 0, sys.monitoring
    events = (monitoring.events.PY_START, monitoring.events.PY_RESUME, monitoring.events.JUMP)

    def counted(*args: object) -> None:
        nonlocal count
        count += 1

    monitoring.use_tool_id(monitoring.PROFILER_ID, "steps")
    try:
        for event in events:
            monitoring.register_callback(monitoring.PROFILER_ID, event, counted)
        monitoring.set_events(monitoring.PROFILER_ID, sum(events))
        found = plan(nodes, wanted)
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
    assert fits != bool(found.problem)
    return count


def large(part: int, levels: tuple[str, ...], gpus: int) -> tuple[Cluster, Gang]:
    """A `part` of 2,000 nodes, and of 1,024 trainers of a whole node and 3,072 rollouts of so many GPUs."""
    wanted = replace(gang(1024 // part, 3072 // part, 8, gpus), levels=levels)
    return cluster(2000 // part, busy=0, random=Random(1)), wanted


@pytest.mark.parametrize("levels", [(), ("block", "rack")])
@pytest.mark.parametrize(("gpus", "fits"), [(2, True), (4, False)])
def test_a_plan_takes_steps_in_proportion_to_pods_and_nodes(levels: tuple[str, ...], gpus: int, fits: bool) -> None:
    """Four million are less than a second of CPU."""
    half, whole = (steps(*large(part, levels, gpus), fits) for part in (2, 1))
    assert whole < 2.5 * half
    assert whole < 4_000_000
