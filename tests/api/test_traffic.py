"""What pods send to each other, and how often."""

import pytest

from api.sized import MOE, gpu_spec
from api.specs import make_spec
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.sizing.traffic import Link, links
from rljob_api.spec import RLJobSpec


def by_kind(spec: RLJobSpec, shape: Shape = NOMINAL, rollouts: int = 0) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links(spec, shape, rollouts):
        found.setdefault(link.kind, []).append(link)
    return found


def test_tensor_parallel_groups_of_a_pod_exchange_nothing_between_pods() -> None:
    assert "tensor" not in by_kind(gpu_spec(4, parallelism={"tensor": 8, "pipeline": 2}))


def test_copies_exchange_the_gradients_of_adapters_alone() -> None:
    lora = {"rank": 8, "targets": ["linear_proj"]}
    spec = make_spec(trainer={"device": "gpu", "nodes": 2}, model={"path": "/data/model", "lora": lora})
    [link] = [link for link in links(spec, NOMINAL, 0) if link.kind == "data"]
    assert link.bytes == 2 * (4 + 4) * 36 * 8 * (4096 + 4096) / 2, "both ways, half to each of two"


def test_data_parallel_pods_form_a_ring_per_stage() -> None:
    found = by_kind(gpu_spec(8, parallelism={"tensor": 8, "pipeline": 2}))
    assert {(x.one, x.other) for x in found["data"]} == {(0, 1), (1, 2), (2, 3), (0, 3), (4, 5), (5, 6), (6, 7), (4, 7)}
    own = (18 * NOMINAL.dense + NOMINAL.embedding) / 8
    assert found["data"][0].bytes == pytest.approx(8 * (4 + 2) * own * 3 / 4), "eight ranks, gradients and parameters"


def test_stages_exchange_activations_with_their_neighbours() -> None:
    found = by_kind(gpu_spec(4, parallelism={"tensor": 8, "pipeline": 4}))
    assert {(x.one, x.other) for x in found["pipeline"]} == {(0, 1), (1, 2), (2, 3)}
    tokens = 16 * 24
    assert found["pipeline"][0].bytes == pytest.approx(2 * 2 * 4096 * tokens), "there and back, an eighth per rank"


def test_virtual_stages_close_the_ring_and_send_more_often() -> None:
    plain = by_kind(gpu_spec(4, parallelism={"tensor": 8, "pipeline": 4}))["pipeline"]
    virtual = by_kind(gpu_spec(4, parallelism={"tensor": 8, "pipeline": 4, "virtualPipeline": 3}))["pipeline"]
    assert {(x.one, x.other) for x in virtual} == {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert virtual[0].bytes == pytest.approx(3 * plain[0].bytes)


def test_experts_exchange_with_all_of_their_group() -> None:
    found = by_kind(gpu_spec(4, 2, parallelism={"expert": 8}), MOE)
    assert {(x.one, x.other) for x in found["expert"]} == {(a, b) for a in range(4) for b in range(a + 1, 4)}


def test_pods_of_an_expert_group_send_to_each_other_both_ways() -> None:
    """As in a ring of two: each of 8 ranks sends an eighth of its tokens' copies to each other, twice there and twice back."""
    found = by_kind(gpu_spec(4, 2, parallelism={"expert": 8}), MOE)
    one_way = 4 * 2 * 64 * 2 * (16 * 24 / 8) / 8 * 4
    assert [x.bytes for x in found["expert"]] == pytest.approx([2 * 2 * 2 * one_way] * 6), "2 x 2 ranks, both ways"


def test_context_parallel_ranks_pass_keys_and_values_round() -> None:
    found = by_kind(gpu_spec(2, parallelism={"tensor": 4, "context": 4}))
    assert {(x.one, x.other) for x in found["context"]} == {(0, 1)}


def test_weights_go_from_rank_0_through_the_rollouts() -> None:
    found = by_kind(gpu_spec(2, parallelism={"tensor": 8}), rollouts=3)
    assert [(x.one, x.other) for x in found["weights"]] == [(0, 2), (2, 3), (3, 4)]
    assert found["weights"][0].bytes == 2 * NOMINAL.parameters


def test_adapters_are_all_that_rollouts_get_of_a_step_where_they_have_the_model() -> None:
    lora = {"rank": 8, "targets": ["linear_proj"], "sync": "adapters"}
    spec = make_spec(trainer={"device": "gpu"}, model={"path": "/data/model", "lora": lora})
    [link] = [link for link in links(spec, NOMINAL, 1) if link.kind == "weights"]
    assert link.bytes == 4 * 36 * 8 * (4096 + 4096)
