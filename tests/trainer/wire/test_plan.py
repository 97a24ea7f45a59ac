"""The transfer plan for any layout of a trainer and of servers: each worker gets what it has, and the servers together get everything."""

import json
import random
from collections import Counter
from itertools import product
from typing import NamedTuple

import pytest
import torch

from rljob_trainer.wire.weights.bucket import Bucket, digest, divided, pack, payload_size, total, unpack
from rljob_trainer.wire.weights.fingerprint import ROW_BYTES, padded
from rljob_trainer.wire.weights.plan import MOST_MORE, Receivers, SentPart, TransferPlan
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice

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

    def needs(self, rank: tuple[int, int, int], tensors: Tensors, layers: int, experts: int) -> dict[str, Slice]:
        """Of what a rank has not all: matrices are divided among tensor-parallel ranks, the later of which may have the same keys."""
        found = {name: NOTHING for name in tensors if not self.has(rank, name, layers, experts)}
        for name in (n for n in tensors if n not in found and tensors[n].dim() == 2 and self.tensor > 1):
            dim, parts = int("down" in name), min(self.tensor, 2) if "key" in name else self.tensor
            size, place = tensors[name].shape[dim] // parts, rank[2] * parts // self.tensor
            if not (self.spread and "experts" in name):
                found[name] = Slice(dim, ((place * size, (place + 1) * size),))
        return found


def policy(of: random.Random, layers: int, experts: int) -> Tensors:
    names = ["embed.weight", "norm.weight"]
    names += [f"layers.{i}.{what}.weight" for i in range(layers) for what in ("attention", "key", "norm")]
    names += [f"layers.{i}.experts.{e}.{m}" for i, e, m in product(range(layers), range(experts), MATRICES)]
    vector, matrix = (lambda: torch.rand(of.randint(1, 9000))), lambda: torch.rand(4 * of.randint(1, 40), 64)
    return {name: vector() if "norm" in name else matrix() for name in names}


def parts_of(trainer: Layout, tensors: Tensors, layers: int, experts: int) -> list[Tensors]:
    """What each sender owns: the first rank that has it."""
    owned: dict[tuple[int, int, int], Tensors] = {}
    for name, tensor in tensors.items():
        owner = next(rank for rank in trainer.ranks if trainer.has(rank, name, layers, experts))
        owned.setdefault(owner, {})[name] = tensor
    return list(owned.values())


def sent_by(sender: Tensors, receivers: Receivers, limit: int) -> list[tuple[SentPart, Bucket]]:
    packed = pack(iter(sender.items()), limit, CPU)
    buckets = divided(packed, lambda entry: receivers.parts(entry.name, entry.shape, 4))
    return [(SentPart(kinds, digest(b.entries), sum(e.size for e in b.entries)), b) for kinds, b in buckets]


def cut(tensor: torch.Tensor, part: Slice | None) -> torch.Tensor:
    return torch.cat([tensor.narrow(part.dim, a, b - a) for a, b in part.ranges], part.dim) if part else tensor


@pytest.mark.parametrize("seed", range(24))
def test_each_worker_receives_what_it_has_and_every_byte_of_that_is_planned(seed: int) -> None:
    of = random.Random(seed)
    layers, experts, limit = of.randint(3, 5), 16, of.choice([1, 2**16, 2**20])
    tensors, trainer = policy(of, layers, experts), Layout.draw(of)
    servers = {f"s{i}": Layout.draw(of) for i in range(of.randint(1, 3))}
    needs = {
        ServerWorker(uid, worker, "h", 1): layout.needs(rank, tensors, layers, experts)
        for uid, layout in servers.items()
        for worker, rank in enumerate(layout.ranks)
    }
    plan = Receivers.of({worker.name: Needs.of(own) for worker, own in needs.items()})
    plan = Receivers.from_json(json.loads(json.dumps(plan.as_json())))
    sent = [one for part in parts_of(trainer, tensors, layers, experts) for one in sent_by(part, plan, limit)]
    left = Counter[str]()
    for entry in (entry for _, bucket in sent for entry in bucket.entries):
        left[entry.name] += padded(entry.size)
    for name, tensor in tensors.items():
        assert padded(tensor.nbytes) <= left[name] <= (1 + MOST_MORE) * padded(tensor.nbytes), (
            "it leaves its owner once"
        )
    planned = plan.received(part for part, _ in sent)
    for worker, own in needs.items():
        received = [bucket for part, bucket in sent if plan.gets(part.kinds, worker)]
        entries = {entry.name: entry for bucket in received for entry in bucket.entries}
        assert entries.keys() == {name for name in tensors if own.get(name) != NOTHING}
        assert len(entries) == sum(len(bucket.entries) for bucket in received), "in one piece"
        assert all(entry.slice in (None, own.get(name)) for name, entry in entries.items())
        assert sum(b.payload.numel() for b in received) == payload_size(entry.size for entry in entries.values())
        mine = planned[plan.kind(worker)]
        assert sum(part.bytes for part in mine) == sum(entry.size for entry in entries.values())
        assert total(part.digest for part in mine) == total(digest(bucket.entries) for bucket in received)
        for bucket in received:
            for name, tensor in unpack(bucket.entries, bucket.payload):
                assert torch.equal(tensor, cut(tensors[name], entries[name].slice))


def worker(uid: str, place: int) -> ServerWorker:
    return ServerWorker(uid, place, "", 0)


def test_who_says_nothing_gets_everything_and_an_unknown_tensor_goes_to_all() -> None:
    without = Needs.of({"x.1": NOTHING})
    plan = Receivers.of({"a/0": without, "a/1": Needs(), "b/0": without})
    assert plan.parts("x.1", (8,), 4) == [({plan.kind(worker("a", 1))}, None)]
    assert plan.parts("x.2", (8,), 4) == plan.parts("new", (8,), 4) == [({0, 1}, None)]
    ((kinds, _),) = Receivers().parts("x.1", (8,), 4)
    assert Receivers().gets(kinds, worker("any", 7))


HALVES = {f"a/{i}": Needs.of({"q": Slice(0, ((32 * i, 32 * i + 32),))}) for i in range(2)}
LARGE, SMALL = (64, 1024), (64, 32)


def test_a_matrix_is_sent_in_the_slices_that_workers_need_where_these_are_no_more_than_the_whole() -> None:
    plan = Receivers.of(HALVES)
    assert plan.parts("q", LARGE, 4) == [({0}, Slice(0, ((0, 32),))), ({1}, Slice(0, ((32, 64),)))]
    assert plan.parts("q", SMALL, 4) == [({0, 1}, None)] and ROW_BYTES > 4 * 64 * 32, "padding would double it"
    assert plan.parts("q", (48, 1024), 4)[0][0] == {0, 1}, "a tensor of another shape is refused by who gets it"
    with_a_whole = Receivers.of(HALVES | {"b/0": Needs()})
    assert with_a_whole.parts("q", LARGE, 4) == [({0, 1, 2}, None)]
    quarters = {f"b/{i}": Needs.of({"q": Slice(0, ((16 * i, 16 * i + 16),))}) for i in range(4)}
    assert Receivers.of(HALVES | quarters).parts("q", LARGE, 4) == [(set(range(6)), None)], "it would leave twice"
    assert len(Receivers.of(quarters).parts("q", LARGE, 4)) == 4


def test_workers_with_the_same_keys_get_them_together_and_what_no_worker_reads_is_not_sent() -> None:
    halves = {f"a/{i}": Needs.of({"k": Slice(0, ((8 * (i // 2), 8 * (i // 2) + 8),)), "v": NOTHING}) for i in range(4)}
    plan = Receivers.of(halves)
    assert len(plan.needs) == 2 and [part for _, part in plan.parts("k", LARGE, 4)] == [
        Slice(0, ((0, 8),)),
        Slice(0, ((8, 16),)),
    ]
    assert plan.parts("v", LARGE, 4) == []


def test_the_log_says_what_workers_receive_where_they_do_not_receive_the_same() -> None:
    plan = Receivers.of({"a/0": Needs.of({"x.1": NOTHING}), "a/1": Needs.of({"x.0": NOTHING})})
    sizes = {"x.0": 2**30, "x.1": 2**31, "y": 2**29}
    parts = [SentPart(plan.parts(name, (8,), 4)[0][0], "", size) for name, size in sizes.items()]
    assert plan.sentence(parts, 7 * 2**29) == "weights: a worker receives 1.50 to 2.50 of 3.50 GiB"
    assert Receivers().sentence([SentPart(frozenset({0}), "", 1)], 1) == ""
    assert TransferPlan.of([2**30, None]).sentence(3).startswith("weights: 1 of the ranks send 1.00 GiB")
