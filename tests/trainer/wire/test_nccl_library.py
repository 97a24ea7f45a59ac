"""What needs neither the library nor a GPU. With both: benchmarks on a GPU machine."""

import math
import time
from typing import Any

import pytest

from rljob_trainer.wire.weights import nccl_library
from rljob_trainer.wire.weights.nccl_library import Communicator, NcclError


def test_a_broadcast_that_takes_too_long_is_not_said_to_have_had_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL calls a communicator sound whose kernel waits for a peer."""
    monkeypatch.setattr(Communicator, "_state", lambda _: 0)
    communicator = Communicator.__new__(Communicator)
    with pytest.raises(NcclError, match="a peer did not come in time"):
        communicator.wait(lambda: False, time.monotonic() + 0.01)


class Waiting:
    """A library whose communicators wait for a peer."""

    def __init__(self) -> None:
        self.aborted = False

    def ncclCommInitRankConfig(self, handle: Any, *_: Any) -> int:  # noqa: N802
        handle._obj.value = 1
        return 7

    def ncclCommGetAsyncError(self, _: Any, state: Any) -> int:  # noqa: N802
        state._obj.value = 7
        return 0

    def ncclCommAbort(self, _: Any) -> None:  # noqa: N802
        self.aborted = True


def test_a_server_that_is_gone_ends_the_wait_for_its_workers_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Waiting()
    monkeypatch.setattr(nccl_library, "_library", lambda: library)
    looks = iter((False, False, True))
    with pytest.raises(NcclError, match="a peer did not come in time"):
        Communicator(bytes(128), 0, 2, math.inf, lambda: next(looks, True))
    assert library.aborted
