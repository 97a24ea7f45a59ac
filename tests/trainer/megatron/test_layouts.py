"""Any layout of a trainer to any layout of servers: what their workers have is what they load from the export's files, bit for bit, and what is sent
and held is what was planned. With real ranks of Megatron and vLLM's own models, one process each."""

import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rljob_trainer.machine import free_port
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rank.weights.sender import Opened
from rljob_trainer.wire.weights.bucket import total
from rljob_trainer.wire.weights.fingerprint import padded
from rljob_trainer.wire.weights.plan import Kinds, Receivers, SentPart
from rljob_trainer.wire.weights.protocol import Offer
from rljob_trainer.wire.weights.slices import NOTHING, Slice
from rljob_trainer.wire.weights.transport import over_tcp
from trainer.megatron.models import job, make_model
from trainer.ranks import run_ranks
from trainer.server.worker_apart import Server, worker_apart
from trainer.traffic import Traffic

HERE = "127.0.0.1"
TRANSPORT = replace(over_tcp(HERE), bucket_bytes=4 * 2**14)
NAMES = 100
"""Bytes by which a connection begins, at most."""
WITH_EXPERTS = ("qwen3_moe", "mixtral")


class Layout(NamedTuple):
    """One drawn case."""

    kind: str
    ranks: int
    trainer: dict[str, int]
    servers: int
    workers: int
    experts: bool

    @staticmethod
    def draw(seed: int) -> "Layout":
        of = random.Random(seed)
        kind, copies = of.choice([*WITH_EXPERTS, "qwen2", "llama"]), of.choice([1, 2])
        tensor, pipeline, context = of.choice([s for s in _SIZES if copies * s[0] * s[1] * s[2] <= 4])
        sizes = {"tensor": tensor, "pipeline": pipeline, "context": context}
        experts, workers = kind in WITH_EXPERTS, of.choice([1, 2])
        if experts:
            alike = copies * tensor * context
            sizes |= {"expert": of.choice([n for n in (1, 2, 4) if not alike % n]), "expertTensor": 1}
        ranks = copies * tensor * pipeline * context
        return Layout(kind, ranks, sizes, of.choice([1, 2]), workers, experts and workers > 1 and of.random() < 0.5)


_SIZES = [(t, p, c) for t in (1, 2) for p in (1, 2) for c in (1, 2)]


Parts = list[tuple[Kinds, Slice | None]]


class Sends(NamedTuple):
    """What one rank did."""

    planned: int
    bytes: int
    """Of its tensors."""
    parts_of: dict[str, Parts]
    """By name of a tensor: who gets which slice of it, by the plan."""
    padded: dict[str, list[int]]
    """Of each of these, its bytes in a bucket."""
    sent: int
    """On its connections."""
    groups: int
    parts: list[SentPart]
    failed: dict[str, Any]


def send(spec: Any, model: Path, files: Path, opened: Opened, tell: int) -> Sends | None:
    """On every rank. `tell`: where the first one writes the offers of all senders. None: this rank is no sender."""
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.huggingface import write_hugging_face
    from rljob_trainer.wire.collective import Ranks

    engine, ranks, parts, sizes = Engine(spec, lambda: None), Ranks(300.0), dict[str, Parts](), dict[str, list[int]]()
    write_hugging_face(engine, model, files)
    sender, phases = Publisher(1, "t", TRANSPORT).sender, engine.export_owned()

    def noted(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            parts[name] = opened.receivers.parts(name, tensor.shape, tensor.itemsize)
            shapes = (part.of(tensor.shape) if part else tensor.shape for _, part in parts[name])
            sizes[name] = [padded(tensor.itemsize * prod(shape)) for shape in shapes]
            yield name, tensor

    offers = ranks.gather(asdict(sender.offer) if any(phase.sends for phase in phases) else None)
    senders = [rank for rank, offer in enumerate(offers) if offer]
    if ranks.is_first:
        os.write(tell, json.dumps([offers[rank] for rank in senders]).encode())
    if ranks.rank not in senders:
        for phase in phases:
            for _ in phase.tensors:
                pass
        ranks.barrier()
        return None
    noting = [phase._replace(tensors=noted(phase.tensors)) if phase.sends else phase for phase in phases]
    sent = sender.send(noting, opened, senders.index(ranks.rank), lambda: None)
    on_the_wire = sum(Traffic.of(group.end._next).sent for group in sender._groups.values())  # type: ignore[union-attr]
    ranks.barrier()  # until all have sent, since one that has gone is missed
    planned = sum(phase.bytes for phase in phases)
    return Sends(planned, sent.bytes, parts, sizes, on_the_wire, len(sender._groups), sent.parts, sent.failed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.extra) for seed in (0, 1, 2, 3, 4, 7)), 10])
def test_every_worker_has_what_it_loads_from_files_and_nothing_but_the_plan_is_sent(
    megatron: None, tmp_path: Path, seed: int
) -> None:
    layout = Layout.draw(seed)
    model, before = tmp_path / "model", tmp_path / "before"
    make_model(model, layout.kind, tied=False)
    make_model(before, layout.kind, tied=False, seed=1)
    spec = job(model, trainer={"nodes": layout.ranks, "parallelism": layout.trainer})
    with ExitStack() as stack:
        servers = [Server(f"s{i}", layout.workers, layout.experts, free_port()) for i in range(layout.servers)]
        started = [stack.enter_context(worker_apart(s, w, before)) for s in servers for w in range(s.workers)]
        known = [worker.member() for worker in started]
        members = {s.uid: tuple(member for member, _ in known if member.server == s.uid) for s in servers}
        opened = Opened("u", members, Receivers.of({member.name: own for member, own in known}))
        reader, writer = os.pipe()

        def introduce() -> None:
            offers = [Offer(**offer) for offer in json.loads(os.read(reader, 10_000))]
            for worker in started:
                worker.receive(offers, tmp_path / "files")

        introducing = threading.Thread(target=introduce, daemon=True)
        introducing.start()
        ranks = run_ranks(layout.ranks, lambda: send(spec, model, tmp_path / "files", opened, writer))
        workers = [worker.held() for worker in started]
    sent = [rank for rank in ranks if rank]
    assert not any(rank.failed for rank in sent), layout
    assert [worker.different for worker in workers] == [[]] * len(workers), layout
    for rank in sent:
        buckets = sum(sum(sizes) for sizes in rank.padded.values())
        assert rank.planned == rank.bytes and buckets <= rank.sent <= buckets + NAMES * rank.groups, layout
    planned = opened.receivers.received(part for rank in sent for part in rank.parts)
    groups = sum(rank.groups for rank in sent)
    for worker, (member, own) in zip(workers, known, strict=True):
        kind, found = opened.receivers.kind(member), dict[str, tuple[Slice | None, int]]()
        for rank in sent:
            for name, parts in rank.parts_of.items():
                for (kinds, part), size in zip(parts, rank.padded[name], strict=True):
                    if kind in kinds:
                        found[name] = (part, size)
        size = sum(size for _, size in found.values())
        assert size <= worker.received <= size + NAMES * groups and worker.copy == worker.parameters, layout
        assert worker.digest == total(part.digest for part in planned[kind])
        assert all(part in (None, own.get(name)) for name, (part, _) in found.items()), layout
        assert any(part for part, _ in found.values()) is (layout.workers > 1), layout
        names = {name for rank in sent for name in rank.parts_of}
        others = {name for name in names if own.get(name) == NOTHING}
        assert found.keys() == names - others and all(".experts." in name for name in others), layout
        assert bool(others) is layout.experts, layout
