"""What NCCL says of its channels. The lines are those that users of NCCL 2.18 to 2.28 have published."""

import os
from pathlib import Path

import pytest

from rljob_api.sizing.layout import Layout
from rljob_trainer.rank import nccl

TWO_NODES = """\
node-06:4015539:4015652 [0] NCCL INFO Using network IB
node-06:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA
node-06:4015540:4015653 [1] NCCL INFO Channel 01/0 : 3[1] -> 1[1] [send] via NET/IB/2/GDRDMA
node-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
node-06:4015540:4015653 [1] NCCL INFO Connected all rings
"""


def test_transports_are_named_without_the_numbers_of_devices() -> None:
    assert nccl.transports_in(TWO_NODES) == ["NET/IB/GDRDMA", "P2P"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("h:1:2 [1] NCCL INFO Channel 01/0 : 26[2] -> 33[1] [receive] via NET/IBext_v8/4", "NET/IBext_v8"),
        ("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0", "NET/Socket"),
        ("h:1:2 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] via SHM/direct/direct", "SHM"),
        ("h:1:2 [0] NCCL INFO Channel 00/24 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P"),
    ],
)
def test_every_kind_of_channel_is_read(line: str, name: str) -> None:
    assert nccl.transports_in(line) == [name]


@pytest.mark.parametrize(
    ("layout", "queues"),
    [
        ({}, None),
        ({"pipeline": 2}, None),
        ({"tensor": 2}, "1"),
        ({"context": 2}, "1"),
        ({"tensor": 2, "pipeline": 2}, "1"),
    ],
)
def test_only_tensor_and_context_parallelism_share_one_queue(
    layout: dict[str, int], queues: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    nccl.choose_queues(Layout(4, **layout))
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == queues


def test_the_queues_of_a_job_that_names_them_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    nccl.choose_queues(Layout(2, tensor=2))
    assert os.environ == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def test_a_cluster_says_first_what_leaves_a_node() -> None:
    assert nccl.sentence([["P2P"], ["NET/Socket", "P2P"], ["NET/IB"]]) == "NCCL over NET/IB, NET/Socket, P2P"
    assert nccl.sentence([[], []]) == ""


def test_a_rank_has_its_lines_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert nccl.transports() == []
    nccl.write_channels(tmp_path / "nccl-0.log")
    assert nccl.transports() == [], "nothing is connected yet"
    (tmp_path / "nccl-0.log").write_text(TWO_NODES)
    assert nccl.transports() == ["NET/IB/GDRDMA", "P2P"]


def test_who_sets_nccls_variables_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.delenv("NCCL_DEBUG_FILE", raising=False)
    nccl.write_channels(tmp_path / "nccl-0.log")
    assert nccl.transports() == []
