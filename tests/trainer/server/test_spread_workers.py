"""vLLM's own model, whose experts are spread over two workers: what each says that it does not need, receives, and has then."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_trainer.machine import free_port
from rljob_trainer.rank.weights.publisher import Publisher
from rljob_trainer.rank.weights.sender import Opened
from rljob_trainer.wire.weights.bucket import payload_size, total
from rljob_trainer.wire.weights.plan import Phase, Receivers
from rljob_trainer.wire.weights.transport import over_tcp
from tests.trainer.server.vllm_models import policy
from trainer.server.worker_apart import Server, worker_apart

pytestmark = pytest.mark.slow
NAME = 100
"""Bytes by which a connection begins, at most."""


@pytest.mark.parametrize(
    "spread", [pytest.param(True, id="spread"), pytest.param(False, id="slices", marks=pytest.mark.extra)]
)
def test_a_worker_receives_its_experts_to_the_byte_and_has_what_it_loads_from_files(
    tmp_path: Path, spread: bool
) -> None:
    """Of slices, each worker receives the whole."""
    policy(tmp_path / "before", 1, "qwen3_moe")
    tensors = policy(tmp_path / "files", 2, "qwen3_moe")
    server, sender = (
        Server("s", 2, spread, free_port()),
        Publisher(1, "t", replace(over_tcp("127.0.0.1"), bucket_bytes=2**16)).sender,
    )
    with ExitStack() as stack:
        workers = [stack.enter_context(worker_apart(server, rank, tmp_path / "before")) for rank in range(2)]
        known = [worker.member() for worker in workers]
        plan = Receivers.of({member.name: names for member, names in known})
        for worker in workers:
            worker.receive([sender.offer], tmp_path / "files")
        opened = Opened("u", {"pod": tuple(member for member, _ in known)}, plan)
        sent = sender.send([Phase(iter(tensors.items()), sends=True)], opened, 0, lambda: None)
        found = [worker.held() for worker in workers]
    assert sent.failed == {} and [held.different for held in found] == [[], []]
    others = [{name for name in tensors if name in names} for _, names in known]
    experts = {name for name in tensors if ".experts." in name}
    assert others[0].isdisjoint(others[1]) and others[0] | others[1] == (experts if spread else set())
    assert len(others[0]) == len(others[1]) == spread * len(experts) // 2
    for (member, _), held, without in zip(known, found, others, strict=True):
        size = payload_size(tensor.nbytes for name, tensor in tensors.items() if name not in without)
        assert size <= held.received < size + 2 * NAME
        assert held.digest == total(part.digest for part in plan.received(sent.parts)[plan.kind(member)])
