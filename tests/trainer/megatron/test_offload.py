"""Storages that leave and come back."""

import torch

from rljob_api.spec.roles import Offload
from rljob_trainer.checkpoint.staging import PinnedMemory
from rljob_trainer.megatron.memory import OffloadedPart, Offloader


def test_views_of_a_storage_have_their_values_again_when_it_is_back() -> None:
    whole = torch.arange(10.0)
    head, tail = whole[:4], whole[4:]
    part = OffloadedPart(lambda: [whole, head, tail])
    assert whole.untyped_storage().nbytes() == 0
    with part.fetched():
        assert torch.equal(tail, torch.arange(4.0, 10.0))
        head.zero_()
    with part.fetched():
        assert whole.tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 8, 9]


def test_host_memory_takes_what_it_holds_across_blocks_of_any_size() -> None:
    memory, written = PinnedMemory(block=8), [torch.arange(n, dtype=torch.uint8) + n for n in (5, 17, 0, 3)]
    at = 0
    for one in written:
        at = memory.write(at, one)
    assert (at, memory.size) == (25, 32)
    at = 0
    for one in written:
        at = memory.read(at, found := torch.zeros_like(one))
        assert torch.equal(found, one)
    memory.write(6, torch.zeros(4, dtype=torch.uint8))
    memory.read(5, found := torch.zeros(17, dtype=torch.uint8))
    assert torch.equal(found, torch.cat([written[1][:1], torch.zeros(4, dtype=torch.uint8), written[1][5:]]))


def test_a_part_that_grows_keeps_its_values() -> None:
    tensors = [torch.ones(3)]
    part = OffloadedPart(lambda: tensors)
    with part.fetched():
        tensors.insert(0, torch.full((4,), 2.0))
    with part.fetched():
        assert [t.tolist() for t in tensors] == [[2.0] * 4, [1.0] * 3]


def test_phases_may_be_nested() -> None:
    tensor = torch.ones(3)
    part = OffloadedPart(lambda: [tensor])
    with part.fetched():
        with part.fetched():
            pass
        assert tensor.sum() == 3
    assert tensor.untyped_storage().nbytes() == 0


def test_what_is_not_kept_only_gives_its_memory_back() -> None:
    tensor = torch.ones(3)
    part = OffloadedPart(lambda: [tensor], keep=False)
    with part.fetched():
        assert tensor.zero_().shape == (3,)
    assert part._host.size == 0


def test_only_what_is_named_leaves_and_tensors_made_meanwhile_leave_with_it() -> None:
    module = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    wrapped = type("Optimizer", (), {"optimizer": optimizer})()
    offloader = Offloader(Offload(optimizer=True), [module], optimizer=wrapped)
    module(torch.ones(4)).sum().backward()
    with offloader.using("parameters", "gradients", "optimizer"):
        optimizer.step()
    moments = [s["exp_avg"] for s in optimizer.state.values()]
    assert all(m.untyped_storage().nbytes() == 0 for m in moments)
    assert all(p.untyped_storage().nbytes() > 0 for p in module.parameters())
    with offloader.using("optimizer"):
        assert all(float(m.abs().sum()) > 0 for m in moments)
