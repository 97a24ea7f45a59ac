"""Large gangs: what a plan costs, counted and not timed, and that it does what a person would."""

import time
from random import Random
from typing import Any

import pytest

from api.specs import make_spec
from benchmarks.placement import cluster, gang
from placement.makers import make_cluster, make_gang, make_racks
from rljob_api.rules.scheduling import MOST_COMPARED, MOST_TERMS
from rljob_placement import search, start
from rljob_placement.cluster import Cluster, Node
from rljob_placement.explain import report
from rljob_placement.gang import Gang
from rljob_placement.plan import plan
from rljob_placement.search import MOST_LOOKUPS
from rljob_placement.space import PlacementProblem, Places


def test_a_gang_of_256_pods_on_1000_nodes_looks_at_a_bounded_number_of_costs() -> None:
    """A microsecond each: the whole search stays under a second."""
    for pipeline in (1, 4, 8):
        found = plan(cluster(1000, busy=400, random=Random(1)), gang(224, 32, pipeline))
        assert len(found.trainers) == 224 and "" not in found.rollouts
        assert found.looked < 2 * MOST_LOOKUPS


def test_twice_the_nodes_do_not_cost_twice_the_search() -> None:
    small, large = (plan(cluster(n, busy=n * 2 // 5, random=Random(1)), gang(64, 8, 4)).looked for n in (400, 800))
    assert large < 1.5 * small


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_stages_take_whole_racks_of_an_empty_cluster(pipeline: int) -> None:
    nodes, wanted = make_cluster(make_racks([16] * 16, racks_per_block=4)), make_gang(16 * pipeline, pipeline)
    found = plan(nodes, wanted)
    amounts = report(nodes, wanted, found)
    assert len(set(amounts.stages)) == pipeline
    assert all(domain.count("/") == 1 for domain in amounts.stages), "block/rack"
    levels = {c.level: c.pairs for c in amounts.levels}
    assert levels["block"] == 0
    assert levels["rack"] == (pipeline - 1) * 16, "each pod with its neighbour stage's"


def test_rollouts_sit_near_rank_0() -> None:
    nodes, wanted = make_cluster(make_racks([4] * 4, racks_per_block=2)), make_gang(4, rollouts=3)
    found = plan(nodes, wanted)
    amounts = report(nodes, wanted, found)
    block = amounts.stages[0].split("/")[0]
    assert {domain.split("/")[0] for domain in amounts.rollouts} == {block}


@pytest.mark.parametrize("values", [1, MOST_COMPARED])
def test_the_largest_affinity_of_a_spec_is_compared_with_2000_nodes_in_a_second(values: int) -> None:
    """Every cycle plans every job that waits."""
    others = [f"x{i}" for i in range(values - 1)] + ["other"]
    other: dict[str, Any] = {"key": "pool", "operator": "NotIn", "values": others}
    absent, named = other | {"operator": "In"}, other | {"key": "metadata.name"}
    term = {"matchExpressions": [other] * (MOST_TERMS - 1) + [absent], "matchFields": [named] * MOST_TERMS}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * MOST_TERMS}}
    template = {"affinity": {"nodeAffinity": required}}
    spec = make_spec(trainer={"device": "cpu", "nodes": 64, "template": template}, scheduling={"backend": "builtin"})
    nodes = Cluster(tuple(Node(f"n{i}", {"pool": f"p{i}"}, free={"pods": 8000}) for i in range(2000)))
    costs = []
    for _ in range(3):
        began = time.process_time()
        assert "not matching" in plan(nodes, Gang.of(spec)).problem
        costs.append(time.process_time() - began)
    assert min(costs) < 1.0


def test_a_search_that_has_looked_up_its_costs_begins_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large gang has dozens of starting points."""
    begun, fill = list[PlacementProblem](), start._fill

    def counted(problem: PlacementProblem, slots: tuple[int, ...], order: list[int]) -> Places | None:
        begun.append(problem)
        return fill(problem, slots, order)

    monkeypatch.setattr(start, "_fill", counted)
    nodes, wanted = cluster(200, busy=0, random=Random(1)), gang(32, 64, 4)
    assert not plan(nodes, wanted).problem
    assert len(begun) > 4
    begun.clear()
    monkeypatch.setattr(search, "MOST_LOOKUPS", 100)
    assert not plan(nodes, wanted).problem
    assert len(begun) == 1
