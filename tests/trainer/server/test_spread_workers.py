"""vLLM's own model, whose experts or matrices are divided among two workers: what each says that it needs, receives, and has then."""

from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from rljob_trainer.machine import free_port
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rank.weights.sender import Opened
from rljob_trainer.wire.weights.bucket import payload_size, total
from rljob_trainer.wire.weights.plan import GatherPhase, Receivers
from rljob_trainer.wire.weights.slices import NOTHING
from rljob_trainer.wire.weights.transport import over_tcp
from tests.trainer.server.vllm_models import policy
from trainer.server.worker_apart import Server, worker_apart

pytestmark = pytest.mark.slow
NAME = 100
"""Bytes by which a connection begins, at most."""


@pytest.mark.parametrize("spread", [True, False], ids=["spread", "slices"])
def test_a_worker_receives_its_experts_or_slices_to_the_byte_and_has_what_it_loads_from_files(
    tmp_path: Path, spread: bool
) -> None:
    policy(tmp_path / "before", 1, "qwen3_moe", hidden_size=512)
    tensors = policy(tmp_path / "files", 2, "qwen3_moe", hidden_size=512)
    server, sender = (
        Server("s", 2, spread, free_port()),
        Publisher(1, "t", replace(over_tcp("127.0.0.1"), bucket_bytes=2**18)).sender,
    )
    with ExitStack() as stack:
        workers = [stack.enter_context(worker_apart(server, rank, tmp_path / "before")) for rank in range(2)]
        known = [worker.member() for worker in workers]
        plan = Receivers.of({member.name: own for member, own in known})
        for worker in workers:
            worker.receive([sender.offer], tmp_path / "files")
        opened = Opened("u", {"pod": tuple(member for member, _ in known)}, plan)
        sent = sender.send([GatherPhase(iter(tensors.items()), sends=True)], opened, 0, lambda: None)
        found = [worker.held() for worker in workers]
    assert sent.failed == {} and [held.different for held in found] == [[], []]
    others = [{name for name in tensors if own.get(name) == NOTHING} for _, own in known]
    experts = {name for name in tensors if ".experts." in name}
    assert others[0].isdisjoint(others[1]) and others[0] | others[1] == (experts if spread else set())
    assert len(others[0]) == len(others[1]) == spread * len(experts) // 2
    whole = payload_size(tensor.nbytes for tensor in tensors.values())
    for (member, _), held in zip(known, found, strict=True):
        parts = {n: p for n, t in tensors.items() for kinds, p in plan.parts(n, t.shape, 4) if plan.gets(kinds, member)}
        size = payload_size(4 * prod(p.of(tensors[n].shape) if p else tensors[n].shape) for n, p in parts.items())
        assert size <= held.received < size + 3 * NAME and size < 0.6 * whole
        assert held.digest == total(part.digest for part in plan.received(sent.parts)[plan.kind(member)])
