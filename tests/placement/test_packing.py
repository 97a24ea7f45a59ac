"""Pods of several sizes onto nodes, in two resources, against a search that puts one pod after the other."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_placement.sharing import AlikePods, pack

Amounts = tuple[int, int]


def kind(requests: Amounts, count: int, nodes: Any) -> AlikePods:
    return AlikePods({"gpu": requests[0], "cpu": requests[1]}, count, frozenset(nodes))


def fit(free: Sequence[Amounts], pods: Sequence[tuple[Amounts, frozenset[int]]]) -> bool:
    """Whether there is a node for each, by trying all."""
    if not pods:
        return True
    (gpu, cpu), nodes = pods[0]
    takes = [n for n, (gpus, cpus) in enumerate(free) if n in nodes and gpus >= gpu and cpus >= cpu]
    less = ([(g - gpu, c - cpu) if n == m else (g, c) for m, (g, c) in enumerate(free)] for n in takes)
    return any(fit(rest, pods[1:]) for rest in less)


AMOUNTS = st.tuples(st.integers(0, 8), st.integers(1, 8))


@settings(max_examples=200)
@given(
    free=st.lists(AMOUNTS, min_size=1, max_size=4),
    kinds=st.lists(
        st.builds(kind, st.tuples(st.integers(0, 5), st.integers(1, 4)), st.integers(0, 2), st.sets(st.integers(0, 3))),
        max_size=3,
    ),
)
def test_all_pods_have_a_place_exactly_when_there_is_one(free: list[Amounts], kinds: list[AlikePods]) -> None:
    ways = pack([{"gpu": gpu, "cpu": cpu} for gpu, cpu in free], kinds)
    pods = [((k.requests["gpu"], k.requests["cpu"]), k.nodes) for k in kinds for _ in range(k.count)]
    assert (ways is not None) == fit(free, pods)
    for node, way in enumerate(ways or []):
        for name, there in zip(("gpu", "cpu"), free[node], strict=True):
            assert sum(count * k.requests[name] for count, k in zip(way, kinds, strict=True)) <= there
        assert all(node in k.nodes for count, k in zip(way, kinds, strict=True) if count)
    if ways is not None:
        assert [sum(way[k] for way in ways) for k in range(len(kinds))] == [k.count for k in kinds]


def test_a_large_cluster_is_packed_and_refused_with_few_looks() -> None:
    """1000 nodes of 8 devices. 5 and 3 fill a node; the last pod of 5 then finds nodes with 3 only."""
    nodes = range(1000)
    sizes = {8: 990, 5: 10, 3: 10}
    free = [{"gpu": 8, "cpu": 64}] * len(nodes)
    full = [kind((size, 1), count, nodes) for size, count in sizes.items()]
    assert pack(free, full, tries=2000) is not None
    sizes |= {5: 11, 3: 8}
    assert pack(free, [kind((size, 1), count, nodes) for size, count in sizes.items()], tries=2000) is None
