"""The transfer plan for any layout of a trainer and of servers: each worker gets what it has, and the servers together get everything, once."""

import json
import random
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import pytest
import torch

from rljob_trainer.wire.weights.bucket import Bucket, digest, divided, pack, payload_size, total, unpack
from rljob_trainer.wire.weights.plan import Receivers, SentPart, TransferPlan
from rljob_trainer.wire.weights.protocol import Member
from rljob_trainer.wire.weights.tensor_names import TensorNames

Tensors = dict[str, torch.Tensor]
CPU = torch.device("cpu")
MATRICES = ("up_proj", "down_proj")


class Layout(NamedTuple):
    """Of a server, or of a trainer."""

    tensor: int
    pipeline: int
    copies: int
    spread: bool
    """Its ranks of a stage have experts of their own."""

    @staticmethod
    def draw(of: random.Random) -> "Layout":
        return Layout(of.choice([1, 2, 4]), of.choice([1, 2, 3]), of.choice([1, 2, 4]), of.random() < 0.7)

    @property
    def ranks(self) -> list[tuple[int, int, int]]:
        """Copy, stage and place among tensor-parallel ranks of each."""
        return list(product(range(self.copies), range(self.pipeline), range(self.tensor)))

    def has(self, rank: tuple[int, int, int], name: str, layers: int, experts: int) -> bool:
        """Whether a rank has some of a tensor."""
        copy, stage, place = rank
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if not numbers:
            return stage == (0 if name.startswith("embed") else self.pipeline - 1)
        if numbers[0] * self.pipeline // layers != stage:
            return False
        among = self.tensor * self.copies
        return len(numbers) == 1 or not self.spread or numbers[1] * among // experts == copy * self.tensor + place


def policy(of: random.Random, layers: int, experts: int) -> Tensors:
    names = ["embed.weight", "norm.weight", *(f"layers.{i}.attention.weight" for i in range(layers))]
    names += [f"layers.{i}.experts.{e}.{m}" for i, e, m in product(range(layers), range(experts), MATRICES)]
    return {name: torch.rand(of.randint(1, 9000)) for name in names}


def parts_of(trainer: Layout, tensors: Tensors, layers: int, experts: int) -> list[Tensors]:
    """What each sender owns: the first rank that has it."""
    owned: dict[tuple[int, int, int], Tensors] = {}
    for name, tensor in tensors.items():
        owner = next(rank for rank in trainer.ranks if trainer.has(rank, name, layers, experts))
        owned.setdefault(owner, {})[name] = tensor
    return list(owned.values())


def sent_by(sender: Tensors, receivers: Receivers, limit: int) -> list[tuple[SentPart, Bucket]]:
    buckets = divided(pack(iter(sender.items()), limit, CPU), receivers.get)
    return [(SentPart(kinds, digest(b.entries), sum(e.size for e in b.entries)), b) for kinds, b in buckets]


def names_of(buckets: Sequence[Bucket]) -> list[str]:
    return [entry.name for bucket in buckets for entry in bucket.entries]


@pytest.mark.parametrize("seed", range(24))
def test_each_worker_receives_what_it_has_and_every_byte_of_that_is_planned(seed: int) -> None:
    of = random.Random(seed)
    layers, experts, limit = of.randint(3, 5), 16, of.choice([1, 2**16, 2**20])
    tensors, trainer = policy(of, layers, experts), Layout.draw(of)
    servers = {f"s{i}": Layout.draw(of) for i in range(of.randint(1, 3))}
    has = {
        Member(uid, worker, "h", 1): {name for name in tensors if layout.has(rank, name, layers, experts)}
        for uid, layout in servers.items()
        for worker, rank in enumerate(layout.ranks)
    }
    plan = Receivers.of({worker.name: TensorNames.of(tensors.keys() - own) for worker, own in has.items()})
    plan = Receivers.from_json(json.loads(json.dumps(plan.as_json())))
    sent = [one for part in parts_of(trainer, tensors, layers, experts) for one in sent_by(part, plan, limit)]
    assert sorted(names_of([bucket for _, bucket in sent])) == sorted(tensors), "each leaves its owner once"
    planned = plan.received(part for part, _ in sent)
    for worker, own in has.items():
        received = [bucket for part, bucket in sent if plan.gets(part.kinds, worker)]
        assert sorted(names_of(received)) == sorted(own)
        assert sum(b.payload.numel() for b in received) == payload_size(tensors[name].nbytes for name in own)
        mine = planned[plan.kind(worker)]
        assert sum(part.bytes for part in mine) == sum(tensors[name].nbytes for name in own)
        assert total(part.digest for part in mine) == total(digest(bucket.entries) for bucket in received)
        for bucket in received:
            assert all(torch.equal(tensor, tensors[name]) for name, tensor in unpack(bucket.entries, bucket.payload))
    for uid in servers:
        assert set().union(*(own for worker, own in has.items() if worker.server == uid)) == tensors.keys()


def test_who_says_nothing_gets_everything_and_an_unknown_tensor_goes_to_all() -> None:
    plan = Receivers.of({"a/0": TensorNames.of(["x.1"]), "a/1": TensorNames(), "b/0": TensorNames.of(["x.1"])})
    assert plan.get("x.1") == {plan.kind(Member("a", 1, "", 0))} and plan.get("x.2") == plan.get("new") == {0, 1}
    assert Receivers().gets(Receivers().get("x.1"), Member("any", 7, "", 0))


def test_the_log_says_what_workers_receive_where_they_do_not_receive_the_same() -> None:
    plan = Receivers.of({"a/0": TensorNames.of(["x.1"]), "a/1": TensorNames.of(["x.0"])})
    parts = [
        SentPart(plan.get("x.0"), "", 2**30),
        SentPart(plan.get("x.1"), "", 2**31),
        SentPart(plan.get("y"), "", 2**29),
    ]
    assert plan.sentence(parts) == "weights: a worker receives 1.50 to 2.50 of 3.50 GiB"
    assert Receivers().sentence([SentPart(frozenset({0}), "", 1)]) == ""
    assert TransferPlan.of([2**30, None]).sentence(3).startswith("weights: 1 of the ranks send 1.00 GiB")
