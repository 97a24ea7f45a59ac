"""The memory that a save copies tensors into."""

import io
import mmap
import threading
from pathlib import Path

import pytest
import torch

from rljob_trainer.checkpoint.staging import Staging

PAGE = mmap.PAGESIZE


def tensors() -> list[torch.Tensor]:
    """Of several types and sizes, one of them across pieces, one not contiguous."""
    noise = torch.Generator().manual_seed(1)
    return [
        torch.randn(5, 700, generator=noise),
        torch.randn(3, 3, generator=noise).bfloat16(),
        torch.tensor(7),
        torch.empty(0, 4),
        torch.arange(40_000).view(100, 400).t(),
        torch.tensor([True, False, True]),
    ]


def test_copies_are_equal_and_independent_of_what_they_were_copied_from() -> None:
    given = tensors()
    expected = [t.clone() for t in given]
    copies = Staging(PAGE).copies(given)
    for tensor in given:
        tensor.zero_()
    for copy, value in zip(copies, expected, strict=True):
        assert copy.dtype == value.dtype and torch.equal(copy, value)


def test_a_copy_is_saved_alone_without_the_memory_around_it() -> None:
    copies = Staging(PAGE).copies(tensors())
    assert [c.untyped_storage().nbytes() for c in copies] == [c.nbytes for c in copies]
    torch.save(copies[1], written := io.BytesIO())
    assert len(written.getvalue()) < 5000


def test_memory_that_was_prepared_is_used_and_again_by_the_next_save() -> None:
    staging, given = Staging(PAGE), [torch.ones(3 * PAGE)]
    staging.prepare(given[0].nbytes)
    first = staging.copies(given)[0].data_ptr()
    assert staging.size == 13 * PAGE
    assert [c.data_ptr() for c in staging.copies(given)] == [first]


def test_a_save_that_needs_more_than_was_prepared_gets_it() -> None:
    staging = Staging(PAGE)
    staging.prepare(100)
    given = [torch.arange(5 * PAGE)]
    assert torch.equal(staging.copies(given)[0], given[0]) and staging.size == 40 * PAGE


def test_a_smaller_save_needs_nothing_new() -> None:
    staging = Staging(PAGE)
    staging.prepare(10 * PAGE)
    staging.copies([torch.ones(4)])
    assert staging.size == 11 * PAGE


def test_what_is_given_back_leaves_the_process() -> None:
    staging, size = Staging(2**20), 2**28
    before = resident()
    staging.copies([torch.ones(size // 4)])
    assert resident() - before > 0.9 * size
    staging.shrink(2**21 + 1)
    assert staging.size == 3 * 2**20 and resident() - before < 0.1 * size
    assert staging.copies([torch.ones(2**19)])[0].sum() == 2**19


def test_a_preparation_that_is_no_longer_wanted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pin(self: Staging, piece: torch.Tensor) -> None:
        begun.set()
        go_on.wait()

    monkeypatch.setattr(Staging, "_pin", pin)
    staging = Staging(PAGE)
    staging.prepare(1000 * PAGE)
    begun.wait()
    threading.Timer(0.2, go_on.set).start()
    staging.shrink(0)
    assert staging.size == 0 and staging.is_ready


def test_a_failed_preparation_costs_only_the_save_that_needs_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Staging, piece: torch.Tensor) -> None:
        raise MemoryError("nothing left to pin")

    monkeypatch.setattr(Staging, "_pin", fail)
    staging = Staging(PAGE)
    staging.prepare(1)
    staging.shrink(0)
    assert "nothing left to pin" in caplog.text
    with pytest.raises(MemoryError, match="nothing left to pin"):
        staging.copies([torch.ones(1)])
    monkeypatch.undo()
    assert staging.copies([torch.ones(1)])[0] == 1


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
