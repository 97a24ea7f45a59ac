"""Bytes between nodes against sums by hand."""

import dataclasses
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.sizing.attention import Latent
from rljob_api.sizing.layout import Amounts
from rljob_api.sizing.network import Flow, cards, hand_over, owned, sample_bytes, sync
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

DENSE = Shape(8, 64, 4, 2, 16, 128, 1000)
MOE = Shape(8, 64, 4, 2, 16, 0, 1000, experts=8, experts_per_token=2, expert_feed_forward=32)


def spec(nodes: int, per_node: int, sizes: dict[str, int], **changes: Any) -> RLJobSpec:
    trainer = {"device": "gpu", "nodes": nodes, "processesPerNode": per_node, "parallelism": sizes}
    return make_spec(trainer=trainer, model={"path": "/data/model", "dtype": "bfloat16"}, **changes)


@pytest.mark.parametrize(
    ("text", "count", "card"), [("400g", 1, 50e9), ("8x400g", 8, 50e9), ("100G", 1, 12.5e9), ("2x1.6t", 2, 200e9)]
)
def test_cards_of_a_node_are_written_in_bits_per_second(text: str, count: int, card: float) -> None:
    found = cards(text)
    assert (found.count, found.card, found.rate) == (count, card, count * card)


@pytest.mark.parametrize("text", ["400", "fast", "0x400g", "8x0g", "-1g", "400gb", "9" * 99 + "g", ""])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="as 400g, or 8x400g for eight of them"):
        cards(text)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (DENSE, {"tensor": 2, "pipeline": 2}),
        (MOE, {"tensor": 2, "pipeline": 2, "expert": 4, "expertTensor": 1}),
        (MOE, {"expert": 8}),
        (Shape(8, 64, 4, 2, 16, 128, 1000, tied=True), {"pipeline": 4}),
    ],
)
def test_every_parameter_has_one_owner(shape: Shape, sizes: dict[str, int]) -> None:
    assert sum(owned(spec(2, 8, sizes), shape).values()) == pytest.approx(2 * shape.parameters, rel=1e-6)


def test_owners_are_the_first_ranks_of_stages_and_of_expert_groups() -> None:
    found = owned(spec(2, 8, {"tensor": 2, "pipeline": 2, "expert": 4, "expertTensor": 1}), MOE)
    assert sorted(found) == [0, 1, 2, 3, 8, 9, 10, 11]
    experts = 2 * 4 * 3 * 64 * 32 * 8 // 4
    assert {found[rank] for rank in (1, 2, 3, 9, 10, 11)} == {experts}


def test_a_sync_leaves_its_owners_once_and_is_passed_on_by_the_servers() -> None:
    """So it takes as long for 64 servers as for two."""
    stage = 2 * (4 * DENSE.dense + DENSE.embedding)

    def flow(servers: int) -> Flow:
        rollout = {"tensorParallel": 8, "replicas": servers}
        return sync(spec(2, 8, {"tensor": 8, "pipeline": 2}, rollout=rollout), DENSE)

    assert flow(1) == Flow(stage, 2 * stage, stage), "the last of the chain passes on nothing"
    assert flow(2) == flow(64) == Flow(2 * stage, 2 * stage, stage), "most go through the rank that owns a stage"


@pytest.mark.parametrize(("tensor", "heads"), [(1, 2), (2, 1), (4, 1), (8, 1)])
def test_a_worker_receives_its_slices_of_matrices_and_whole_heads_of_keys(tensor: int, heads: int) -> None:
    """Of two heads of keys and of values."""
    received = sync(spec(8, 8, {"tensor": 8, "pipeline": 8}, rollout={"tensorParallel": tensor}), DENSE)
    head = 2 * 8 * 2 * 64 * 16
    rest = 2 * DENSE.parameters - 2 * head
    assert received.one == pytest.approx(max(rest / tensor + heads * head, 2 * (DENSE.dense + DENSE.embedding)))


def test_a_pod_of_a_server_that_divides_matrices_over_several_receives_its_slices_and_all_of_the_router() -> None:
    rollout = {"nodes": 2, "tensorParallel": 4, "replicas": 1}
    found = sync(spec(1, 8, {"expert": 8}, rollout=rollout), MOE)
    router = 2 * 8 * 64 * 8
    assert found.received == pytest.approx((SHARED + EXPERTS - router) / 2 + router)
    one_head = 2 * 8 * 2 * 64 * 16
    assert found.one == max(
        (SHARED - 2 * one_head - router) / 4 + one_head + router + EXPERTS / 4, SHARED + EXPERTS / 8
    )
    alone = sync(spec(8, 1, {"expert": 8}, rollout=rollout), MOE)
    assert alone.sent == SHARED + EXPERTS / 8 > router, "which alone is passed on to the other pod"


def test_a_worker_receives_all_of_what_makes_the_vectors_of_latent_attention() -> None:
    latent = Latent(query=32, key_value=16, content=16, rotated=8, value=16)
    shape = Shape(8, 64, 4, 4, 16, 128, 1000, latent=latent)
    found = sync(spec(8, 8, {"tensor": 8, "pipeline": 8}, rollout={"tensorParallel": 4}), shape)
    into = 2 * 8 * 64 * (32 + 16 + 8)
    assert found.one == pytest.approx((2 * shape.parameters - into) / 4 + into)


EXPERTS = 2 * 8 * 8 * 3 * 64 * 32
SHARED = 2 * MOE.parameters - EXPERTS


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_worker_of_a_spread_server_receives_its_own_experts_and_what_all_have(nodes: int) -> None:
    """So the experts of a pod arrive in it, and no others."""
    rollout = {"nodes": nodes, "tensorParallel": 2, "dataParallel": 2, "expertParallel": True, "replicas": 2}
    found = sync(spec(1, 8, {"expert": 8}, rollout=rollout), MOE)
    assert found.received == pytest.approx(SHARED + EXPERTS / nodes)
    assert found.one == pytest.approx(SHARED + EXPERTS / 8), "the rank that owns most sends more than a worker receives"
    assert found.sent == pytest.approx(SHARED + EXPERTS)
    copies = sync(spec(1, 8, {"expert": 8}, rollout=rollout | {"tensorParallel": 1, "nodes": 1}), MOE)
    assert copies.one == pytest.approx(SHARED + EXPERTS / 2), "copies have all that is no expert"
    whole = sync(spec(1, 8, {"expert": 8}, rollout={"tensorParallel": 4, "replicas": 2}), MOE)
    assert whole.received == pytest.approx(SHARED + EXPERTS)


def test_what_one_spread_server_of_two_pods_passes_on_is_what_both_have() -> None:
    rollout = {"nodes": 2, "dataParallel": 2, "expertParallel": True, "replicas": 1}
    found = sync(spec(8, 1, {"expert": 8}, rollout=rollout), MOE)
    assert found.sent == pytest.approx(max(SHARED, SHARED + EXPERTS / 8)) and found.received == SHARED + EXPERTS / 2


def test_a_stage_of_a_server_receives_its_own_layers() -> None:
    rollout = {"nodes": 2, "pipelineParallel": 2, "tensorParallel": 2, "replicas": 2}
    found = sync(spec(1, 8, {"tensor": 8}, rollout=rollout), DENSE)
    assert found.received == pytest.approx(2 * (4 * DENSE.dense + DENSE.embedding))
    together = sync(spec(1, 8, {"tensor": 8}, rollout=rollout | {"nodes": 1}), DENSE)
    assert together.received == pytest.approx(2 * DENSE.parameters)


def test_a_sync_of_colocated_servers_crosses_nodes_only_from_stages_on_others() -> None:
    together = {"placement": "colocated", "tensorParallel": 8}
    assert sync(spec(2, 8, {"tensor": 8}, rollout=together), DENSE).sent == 0
    stage = 2 * (4 * DENSE.dense + DENSE.embedding)
    assert sync(spec(2, 8, {"tensor": 8, "pipeline": 2}, rollout=together), DENSE).received == stage


@pytest.mark.parametrize(
    ("nodes", "sizes", "missing", "copies"),
    [
        (4, {"tensor": 8, "pipeline": 2}, 1, 1),
        (2, {"tensor": 4, "pipeline": 2}, 1, 2),
        (2, {"tensor": 2, "pipeline": 2, "context": 2}, 1, 4),
        (8, {"tensor": 4, "pipeline": 4}, 3, 2),
        (1, {"tensor": 4, "pipeline": 2}, 0, 1),
    ],
)
def test_a_pod_receives_the_stages_that_it_does_not_have_once_for_each_of_its_copies(
    nodes: int, sizes: dict[str, int], missing: int, copies: int
) -> None:
    """Each stage has as many layers; the embedding and the output layer belong to the ends, so that a pod between them lacks most."""
    together = {"placement": "colocated", "tensorParallel": 8}
    layers = DENSE.layers // sizes["pipeline"]
    ends = min(missing, 2 if sizes["pipeline"] > 2 else 1)
    expected = copies * 2 * (missing * layers * DENSE.dense + ends * DENSE.embedding)
    found = sync(spec(nodes, 8, sizes, rollout=together), DENSE)
    assert found == Flow(expected, expected, expected / 8), "every rank receives its shard, through a card of its own"


def test_experts_reach_a_pod_once_for_each_of_their_copies_and_between_pods_where_a_group_is_larger() -> None:
    together = {"placement": "colocated", "tensorParallel": 8}

    def received(nodes: int, **sizes: int) -> float:
        return sync(spec(nodes, 8, sizes, rollout=together), MOE).received

    experts, rest = 2 * 8 * MOE.mixed, 2 * (MOE.parameters - 8 * MOE.mixed)
    assert received(2, pipeline=2, expert=8) == pytest.approx(experts / 2 + 8 * rest / 2)
    assert received(2, pipeline=2, expert=4) == pytest.approx(2 * experts / 2 + 8 * rest / 2)
    assert received(2, expert=8) == 0, "each pod has all of them"
    wide = Shape(8, 64, 4, 2, 16, 0, 1000, experts=16, experts_per_token=2, expert_feed_forward=32)
    crossing = sync(spec(2, 8, {"expert": 16}, rollout=together), wide)
    half = 2 * 8 * wide.mixed / 2
    assert crossing == Flow(half, half, half), "one rank of a pod takes what the other pod has"


def test_a_batch_leaves_the_first_node_once_for_each_copy_elsewhere() -> None:
    """Of four copies the first node has two."""
    train = {"steps": 1, "promptsPerStep": 64, "samplesPerPrompt": 8}
    data = {"train": ["/data/train.jsonl"], "maxPromptTokens": 1024}
    step = {"train": train, "data": data, "rollout": {"sampling": {"maxTokens": 1024}}}
    part = 512 * (2048 * 4 + 1024 * 4) / 4
    assert hand_over(spec(2, 8, {"tensor": 4}, **step), DENSE) == Flow(2 * part, 2 * part, 2 * part)
    assert hand_over(spec(1, 8, {"tensor": 4}, **step), DENSE).sent == 0
    staged = hand_over(spec(2, 8, {"tensor": 4, "pipeline": 2}, **step), DENSE)
    assert staged.sent == 4 * part, "its own copies have stages on the other node"


def test_a_replayed_token_has_a_byte_for_each_of_its_experts() -> None:
    replay = {"rolloutCorrection": {"routerReplay": "rollout"}}
    plain, replayed = spec(1, 8, {}), spec(1, 8, {}, algorithm=replay)
    longest = Amounts.of(plain).longest
    assert sample_bytes(replayed, MOE) - sample_bytes(plain, MOE) == longest * 8 * 2


@pytest.mark.parametrize(("experts", "index"), [(256, 1), (257, 2), (384, 2)])
def test_the_number_of_one_of_more_than_256_experts_takes_two_bytes(experts: int, index: int) -> None:
    replay = {"rolloutCorrection": {"routerReplay": "rollout"}}
    plain, replayed = spec(1, 8, {}), spec(1, 8, {}, algorithm=replay)
    shape = dataclasses.replace(MOE, experts=experts)
    added = sample_bytes(replayed, shape) - sample_bytes(plain, shape)
    assert added == Amounts.of(plain).longest * 8 * 2 * index


def test_seconds_are_those_of_the_slowest_card() -> None:
    flow = Flow(800e9, 400e9, 100e9)
    assert flow.seconds(cards("8x400g")) == 2.0, "all cards of the node"
    assert Flow(100e9, 0, 100e9).seconds(cards("8x400g")) == 2.0, "one rank has one card"
