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
    """What one rank did in two publications."""

    whole: Tensors
    owned: Tensors
    sent: int
    """Bytes that it sent in both, on its connection to servers."""
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
