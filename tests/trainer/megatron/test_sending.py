"""A policy from the ranks that own its parts to servers: what every process sends and holds."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rljob_trainer.rank.weights.publisher import Published, Publisher
from rljob_trainer.wire.weights.fingerprint import padded
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.models import job, make_model
from trainer.rank.standing import Tensors, digest_of, servers_apart
from trainer.ranks import run_ranks
from trainer.traffic import Traffic

HERE = "127.0.0.1"
NAME = 100
"""Bytes by which a connection begins, at most."""
MESSAGES = 200_000
"""Bytes that messages and connections of a small policy may take."""


class OnRank(NamedTuple):
    """What one rank did in its publications."""

    whole: Tensors
    owned: Tensors
    sent: int
    """Bytes that it sent in all, on its connection to servers."""
    published: Published | None


def publish(spec: Any, servers: list[Any]) -> OnRank:
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.rank.weights.senders import Senders
    from rljob_trainer.wire.collective import Ranks

    engine, ranks = Engine(spec, lambda: None), Ranks(120.0)
    transport = replace(over_tcp(HERE), bucket_bytes=4 * 2**14)
    senders = Senders(ranks, lambda: Publisher(1, "t", transport), lambda: None)
    owned = {n: t.clone() for phase in engine.export_owned() for n, t in phase.tensors if phase.sends}
    whole = {name: tensor.clone() for name, tensor in engine.export()}
    for step in range(2):
        published = senders.publish(step, engine.export_owned(), servers, None, lambda: None)
    (group,) = senders._publisher.sender._groups.values()
    return OnRank(whole, owned, Traffic.of(group.end._next).sent, published)  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_rank_sends_what_it_owns_once_through_all_servers_and_nothing_else(
    megatron: None, tmp_path: Path, workers: int
) -> None:
    model = make_model(tmp_path, "qwen3_moe", tied=False)
    spec = job(model, trainer={"nodes": 4, "parallelism": {"pipeline": 2, "expert": 2}})
    with servers_apart(2, workers) as (servers, held):
        ranks = run_ranks(4, lambda: publish(spec, servers))
        found = held()
    whole, published = ranks[0].whole, ranks[0].published
    assert published and published.failed == {} and len(published.ok) == 2
    assert all(rank.published is None for rank in ranks[1:])
    for tensors in found.tensors:
        assert tensors.keys() == whole.keys()
        assert all(torch.equal(tensor, whole[name]) for name, tensor in tensors.items())
    assert found.digests == [[digest_of(whole)] * 2] * 2 and found.most_held <= 2
    for rank in ranks:
        size = sum(padded(tensor.nbytes) for tensor in rank.owned.values())
        assert rank.owned and 2 * size < rank.sent < 2 * size + NAME
    assert found.received <= 2 * 2 * workers * sum(padded(t.nbytes) for t in whole.values()) + 8 * MESSAGES


def publish_in_pods(spec: Any, servers: list[Any], size: int) -> OnRank:
    """Once. `servers`: one of each pod, of `size` ranks."""
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.rank.weights.senders import Senders
    from rljob_trainer.wire.collective import Ranks

    engine, ranks = Engine(spec, lambda: None), Ranks(120.0)
    place, publisher = ranks.rank % size, Publisher(1, "t", over_tcp(HERE))
    own = [] if place else [servers[ranks.rank // size]]
    senders = Senders(ranks, lambda: publisher, lambda: None, own, ranks.rank - place)
    phases = engine.export_served(senders.leader)
    owned = {n: t.clone() for phase in phases for n, t in phase.tensors if phase.sends}
    published = senders.publish(0, engine.export_served(senders.leader), servers, None, lambda: None)
    groups = publisher.sender._groups.values()
    sent = sum(Traffic.of(group.end._next).sent for group in groups)  # type: ignore[union-attr]
    return OnRank({name: tensor.clone() for name, tensor in engine.export()}, owned, sent, published)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "sizes"),
    [(2, {"expert": 2}), (4, {"expert": 4}), (2, {"expert": 4})],
    ids=["two pods with a copy each", "one pod", "two pods with half of the experts each"],
)
def test_servers_on_the_gpus_of_a_pod_get_a_policy_from_all_its_ranks_that_own_a_part(
    megatron: None, tmp_path: Path, size: int, sizes: dict[str, int]
) -> None:
    spec = job(make_model(tmp_path, "qwen3_moe", tied=False), trainer={"nodes": 4, "parallelism": sizes})
    with servers_apart(4 // size, 1) as (servers, held):
        ranks = run_ranks(4, lambda: publish_in_pods(spec, servers, size))
        found = held()
    whole = ranks[0].whole
    for tensors in found.tensors:
        assert tensors.keys() == whole.keys()
        assert all(torch.equal(tensor, whole[name]) for name, tensor in tensors.items())
    for rank in ranks:
        assert rank.published and rank.published.failed == {} and len(rank.published.ok) == 4 // size
        assert rank.published.version.digest == digest_of(whole)
        part = sum(padded(tensor.nbytes) for tensor in rank.owned.values())
        assert part <= rank.sent <= part + NAME
    assert [bool(rank.owned) for rank in ranks] == [i % size == 0 or sizes["expert"] <= size for i in range(4)]
