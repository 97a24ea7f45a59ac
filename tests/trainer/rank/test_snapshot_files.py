"""What the ranks say of the files of a snapshot that they are to send: they are damaged for good, or cannot be read now."""

import json
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rljob_trainer.rank.snapshot_files import policy_of
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.rollout_server import POLICY
from rljob_trainer.wire.service import RefusedWork, TemporaryFailure
from trainer.ranks import run_ranks

WEIGHTS = "model.safetensors"
UNREADABLE = "/proc/self/mem"
"""A file whose reading is an input/output error at its beginning, as of a volume that is away."""
SAYS = {"digest": "d", "sequences": [], "log_probs": []}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": torch.zeros(3)}, tmp_path / WEIGHTS)
    (tmp_path / POLICY).write_text(json.dumps(SAYS))
    return tmp_path


def link(name: str, target: str) -> Callable[[Path], None]:
    """A file is a link to another one."""

    def change(snapshot: Path) -> None:
        (snapshot / name).unlink()
        (snapshot / name).symlink_to(target)

    return change


def lose(snapshot: Path) -> None:
    """A file that the index names."""
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lost": "lost.safetensors"}}))


def delete(snapshot: Path) -> None:
    (snapshot / "config.json").unlink()


def cut(name: str) -> Callable[[Path], None]:
    return lambda snapshot: os.truncate(snapshot / name, 10)


def say(words: str) -> Callable[[Path], None]:
    """In place of what the snapshot says of itself."""

    def change(snapshot: Path) -> None:
        (snapshot / POLICY).write_text(words)

    return change


@contextmanager
def no_file_to_open() -> Iterator[None]:
    """The process has as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


STATES: dict[str, tuple[Callable[[Path], None], type[RefusedWork], str]] = {
    "deleted": (delete, RefusedWork, "holds no model: it was deleted"),
    "weights are lost": (lose, RefusedWork, "is damaged: .*No such file.*Save it again"),
    "weights are cut": (cut(WEIGHTS), RefusedWork, "is damaged: .*Save it again"),
    "its words are cut": (cut(POLICY), RefusedWork, "is damaged: .*Save it again"),
    "its words are a number": (say("3"), RefusedWork, "is damaged: .*Save it again"),
    "its words are a list": (say("[1]"), RefusedWork, "is damaged: .*Save it again"),
    "its words are nothing": (say("null"), RefusedWork, "is damaged: .*Save it again"),
    "links in a circle": (link(WEIGHTS, WEIGHTS), RefusedWork, "is damaged: .*symbolic links.*Save it again"),
    "weights cannot be read": (link(WEIGHTS, UNREADABLE), TemporaryFailure, "cannot be read now: .*Input/output error"),
    "its words cannot be read": (
        link(POLICY, UNREADABLE),
        TemporaryFailure,
        "cannot be read now: .*Input/output error",
    ),
    "no file can be opened": (lambda _: None, TemporaryFailure, "cannot be read now: .*Too many open files"),
}


def read_by_ranks(snapshot: Path, room: bool = True) -> list[Any]:
    """What each of two ranks gets, or its refusal and the reason. `room`: whether the first one can open a file."""

    def on_a_rank() -> Any:
        ranks = Ranks(60.0)
        try:
            with nullcontext() if room or not ranks.is_first else no_file_to_open():
                return policy_of(snapshot, ranks)
        except RefusedWork as refusal:
            return type(refusal).__name__, str(refusal)

    return run_ranks(2, on_a_rank)


@pytest.mark.parametrize("state", STATES)
def test_a_temporary_failure_of_a_volume_is_another_refusal_than_damage(snapshot: Path, state: str) -> None:
    change, kind, why = STATES[state]
    change(snapshot)
    for refusal, said in read_by_ranks(snapshot, room=state != "no file can be opened"):
        assert refusal == kind.__name__ and re.search(why, said), said


def test_a_snapshot_says_what_it_is_and_the_base_model_nothing(snapshot: Path) -> None:
    assert read_by_ranks(snapshot) == [SAYS, SAYS]
    (snapshot / POLICY).unlink()
    assert read_by_ranks(snapshot) == [{}, {}]
