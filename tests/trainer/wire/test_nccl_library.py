"""What needs neither the library nor a GPU. With both: benchmarks on a GPU machine."""

import time

import pytest

from rljob_trainer.wire.weights.nccl_library import Communicator, NcclError


def test_a_broadcast_that_takes_too_long_is_not_said_to_have_had_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL calls a communicator sound whose kernel waits for a peer."""
    monkeypatch.setattr(Communicator, "_state", lambda _: 0)
    communicator = Communicator.__new__(Communicator)
    with pytest.raises(NcclError, match="a peer did not come in time"):
        communicator.wait(lambda: False, time.monotonic() + 0.01)
