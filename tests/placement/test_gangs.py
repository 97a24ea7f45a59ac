"""Gangs of other models next to the trainer's: all of a job or nothing, each by its own links, and near the trainer that asks it."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from api.specs import make_spec
from placement.makers import GPU, bare_gang, make_cluster, make_node, make_pod, make_racks
from rljob_placement.explain import report
from rljob_placement.gang import Demand, Gang, Placement, Pool, Stay
from rljob_placement.plan import plan


def job(nodes: int, rollouts: int = 0, **gangs: dict[str, Any]) -> Gang:
    """Trainers of 8 GPUs with gangs that the spec describes."""
    trainer = {"device": "gpu", "nodes": nodes, "processesPerNode": 8, "parallelism": {"tensor": 8}}
    pool = {"replicas": rollouts, "minReplicas": rollouts, "tensorParallel": 8}
    models = [{"model": {"path": "/data/reward"} | gangs["reward0"]}] if "reward0" in gangs else [{"rule": "number"}]
    return Gang.of(
        make_spec(
            trainer=trainer,
            rollout=pool,
            reference=gangs.get("reference", {}),
            rewards=models,
            algorithm={"kl": {"coefficient": 0.01}},
            scheduling={"topologyLevels": ["block", "rack"]},
        )
    )


def used(gang: Gang, found: Placement, stay: Stay | None = None) -> Counter[str]:
    """GPUs by node."""
    count: Counter[str] = Counter()
    for node, demand in found.newcomers(gang, stay or Stay()):
        count[node] += demand.requests[GPU] // 1000
    return count


def test_a_gang_takes_the_place_next_to_the_trainer_of_rank_0() -> None:
    """Racks r1 and r2 have equal capacity; the trainer is in r2 only."""
    nodes = make_racks([0, 2, 3], racks_per_block=1)
    gang = job(2, reference={"processesPerNode": 8, "parallelism": {"tensor": 8}})
    busy = [make_pod("n2-2", 4)]
    gang = replace(gang, trainer=replace(gang.trainer, selector={"rack": "r2"}))
    small = replace(gang.gangs["reference"], trainer=Demand({GPU: 4000, "pods": 1000}, {}))
    found = plan(make_cluster(nodes, busy), replace(gang, gangs={"reference": small}))
    assert set(found.trainers) == {"n2-0", "n2-1"} and found.gangs == {"reference": ("n2-2",)}


def test_each_stage_of_a_gang_stays_in_a_rack_of_its_own() -> None:
    """The gang's tensor-parallel pairs of pods move most; its two stages little. No rack holds all four of its pods."""
    sizes = {"tensor": 4, "pipeline": 2}
    gang = job(1, reference={"nodes": 4, "processesPerNode": 2, "parallelism": sizes})
    gang = replace(gang, trainer=replace(gang.trainer, selector={"block": "b0"}))
    nodes = [
        *make_racks([1]),
        *(make_node(f"m{r}-{i}", 2, block="b1", rack=f"m{r}") for r in range(2) for i in range(2)),
    ]
    found = plan(make_cluster(nodes), gang)
    assert found.trainers == ("n0-0",)
    stages = [{name[:2] for name in found.gangs["reference"][:2]}, {name[:2] for name in found.gangs["reference"][2:]}]
    assert sorted(map(sorted, stages)) == [["m0"], ["m1"]]
    shown = report(make_cluster(nodes), gang, found)
    assert sorted(shown.gangs["reference"]) == ["b1/m0", "b1/m1"]
    assert {c.level: c.pairs for c in shown.levels} == {"block": 1, "rack": 2, "node": 2}


def test_a_job_whose_gang_has_no_room_gets_no_node_at_all() -> None:
    gang = job(1, 1, reference={"nodes": 3, "processesPerNode": 8, "parallelism": {"tensor": 8}})
    found = plan(make_cluster(make_racks([4])), gang)
    assert found.nodes() == set()
    assert found.problem.startswith(
        "alongside the job's other pods needs capacity for 3 reference pods with 8 nvidia.com/gpu each and the cluster has it for 2; "
    )


def test_a_gang_of_large_pods_comes_before_small_ones_that_would_break_its_only_node() -> None:
    """The trainer's two pods would take half of each node, or one of them."""
    gang = job(1, reference={"processesPerNode": 8}, reward0={"nodes": 2, "processesPerNode": 4})
    small = replace(gang, trainer=Demand({GPU: 4000, "pods": 1000}, {}), trainers=2, links=())
    found = plan(make_cluster([make_node(f"n{i}", 8, block="b", rack="r") for i in range(3)]), small)
    assert not found.problem and max(used(small, found).values()) == 8


def test_a_gang_that_stays_keeps_nodes_and_ranks_and_takes_no_capacity() -> None:
    gang = job(1, reference={"nodes": 2, "processesPerNode": 8, "parallelism": {"tensor": 8}})
    cluster = make_cluster(make_racks([3]), [make_pod("n0-0", 8), make_pod("n0-2", 8)])
    stay = Stay(gangs={"reference": Stay(ranks={0: "n0-2", 1: "n0-0"})})
    found = plan(cluster, gang, stay)
    assert (found.trainers, found.gangs) == (("n0-1",), {"reference": ("n0-2", "n0-0")})
    assert list(found.newcomers(gang, stay)) == [("n0-1", gang.trainer)]
    one = Stay(gangs={"reference": Stay(trainers=("n0-2",))})
    cluster = make_cluster(make_racks([3]), [make_pod("n0-2", 8)])
    found = plan(cluster, gang, one)
    assert sorted(found.gangs["reference"]) == sorted({"n0-0", "n0-1", "n0-2"} - set(found.trainers))
    assert used(gang, found, one).total() == 16


def test_further_rollouts_get_what_gangs_leave() -> None:
    gang = job(1, 3, reference={"processesPerNode": 8, "parallelism": {"tensor": 8}})
    found = plan(make_cluster(make_racks([4])), replace(gang, minimum=1))
    assert len(found.gangs["reference"]) == 1 and found.rollouts.count("") == 1
    assert len(found.nodes()) == 4


def test_a_frozen_model_moves_no_gradients_and_half_of_a_training_pass() -> None:
    """Tensor parallelism over two pods: 8 b h T (t-1)/t bytes per layer for a pass with a backward pass, half of it without."""
    sizes = {"tensor": 2}
    gang = job(1, reference={"nodes": 2, "processesPerNode": 1, "parallelism": sizes}).gangs["reference"]
    (tensor,) = [link for link in gang.links if link.kind == "tensor"]
    assert {link.kind for link in gang.links} == {"tensor", "columns"}
    tokens, hidden, layers = 4 * 4 * (16 + 8), 4096, 36
    assert tensor.bytes == 2 * 4 * 4 * hidden * tokens / 2 * layers  # in both directions
    (columns,) = [link for link in gang.links if link.kind == "columns"]
    assert (columns.one, columns.other, columns.bytes) == (0, 2, 12 * tokens)


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    trainer=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(1, 4)),
    gangs=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 8)), min_size=1, max_size=2),
    pools=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), max_size=2),
)
def test_no_node_is_overbooked_and_pods_of_any_sizes_are_placed_whenever_they_fit(
    sizes: list[int],
    trainer: tuple[int, int, int, int],
    gangs: list[tuple[int, int]],
    pools: list[tuple[int, int]],
) -> None:
    pods, rollouts, *gpus = trainer
    cluster = make_cluster([make_node(f"n{i}", size) for i, size in enumerate(sizes)])
    others = {f"reward{i}": bare_gang(count, 1, (size, gpus[0]), [], []) for i, (count, size) in enumerate(gangs)}
    servers = tuple(Pool(f"p{i}", count, gpu(size)) for i, (count, size) in enumerate(pools))
    whole = replace(bare_gang(pods, rollouts, (gpus[0], gpus[1]), [], []), gangs=others, pools=servers)
    found = plan(cluster, whole)
    wanted = [gpus[0]] * pods + [gpus[1]] * rollouts + [size for count, size in [*gangs, *pools] for _ in range(count)]
    assert bool(found.problem) != fit(tuple(sorted(sizes)), tuple(sorted(wanted)))
    if not found.problem:
        assert all(count <= sizes[int(name[1:])] for name, count in used(whole, found).items())
        assert [len(found.gangs[f"reward{i}"]) for i in range(len(gangs))] == [count for count, _ in gangs]
        assert [len(found.pools[f"p{i}"]) for i in range(len(pools))] == [count for count, _ in pools]
        assert len(list(found.newcomers(whole, Stay()))) == len(wanted)


@cache
def fit(capacity: tuple[int, ...], pods: tuple[int, ...]) -> bool:
    """Whether the nodes hold the pods, by trying every node for the largest one."""
    if not pods:
        return True
    *rest, largest = pods
    nodes = [n for n, free in enumerate(capacity) if free >= largest]
    return any(
        fit(tuple(sorted((*capacity[:n], capacity[n] - largest, *capacity[n + 1 :]))), tuple(rest)) for n in nodes
    )


def test_pods_of_four_sizes_fill_nodes_that_one_gang_after_the_other_would_break() -> None:
    """Trainers and judges fill the small nodes only if neither of them takes of the large ones, which critic and rollouts fill."""
    sizes = [8, 8, 3, 3]
    gang = replace(bare_gang(2, 2, (2, 4), [], []), gangs={"critic": bare_gang(1, 1, (8, 2), [], [])})
    found = plan(
        make_cluster([make_node(f"n{i}", size) for i, size in enumerate(sizes)]),
        whole := replace(gang, pools=(Pool("judge", 2, gpu(1)),)),
    )
    assert not found.problem and used(whole, found) == {f"n{i}": size for i, size in enumerate(sizes)}


def test_what_stays_is_not_packed_again() -> None:
    gang = replace(bare_gang(2, 1, (3, 4), [], []), gangs={"critic": bare_gang(2, 1, (5, 3), [], [])}, pools=())
    there = [make_pod("n0", 5), make_pod("n2", 4)]
    stay = Stay(gangs={"critic": Stay(trainers=("n0",))}, rollouts={0: "n2"})
    found = plan(make_cluster([make_node(f"n{i}", 8) for i in range(3)], there), gang, stay)
    assert not found.problem and sorted(found.gangs["critic"]) == ["n0", "n1"] and found.rollouts == ("n2",)
    assert used(gang, found, stay) == {"n0": 3, "n1": 8}


def gpu(count: int) -> Demand:
    return Demand({GPU: 1000 * count, "pods": 1000}, {})
