"""Where a worker has room for a second copy of its parameters."""

from functools import partial
from pathlib import Path

import pytest

from rljob_trainer.machine import memory_limit, memory_used
from rljob_trainer.server.weights import room

LIMIT, USED = 2 * 2**30, 1_600 * 2**20


def test_what_other_workers_of_a_pod_hold_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that they offload, for example."""
    (tmp_path / "memory.max").write_text(f"{LIMIT}\n")
    (tmp_path / "memory.current").write_text(f"{USED + 2**28}\n")
    (tmp_path / "memory.stat").write_text(f"inactive_file {2**28}\n")
    monkeypatch.setattr(room, "memory_limit", partial(memory_limit, tmp_path))
    monkeypatch.setattr(room, "memory_used", partial(memory_used, tmp_path))
    assert room._free_host_memory() == LIMIT - USED
