"""A kill before each single change of a directory that saving makes, one after the other."""

import os
import sys
from pathlib import Path
from typing import Any

from rljob_trainer.checkpoint.files import Tally
from rljob_trainer.checkpoint.manifest import STEP_DIRECTORY, read_manifest
from trainer.checkpoint.saving import open_store, save

CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove"}
"""Audit events; and `open` for writing."""
KILLED = 9


def test_a_kill_at_each_point_leaves_whole_checkpoints_only_and_nothing_for_good(tmp_path: Path) -> None:
    number = 0
    while killed_before(number, root := tmp_path / str(number)):
        for directory in filter(is_named_as_one, root.iterdir()):
            manifest = read_manifest(directory)
            assert manifest and not manifest.corruption(directory, 0, 1, Tally()), (
                f"{directory.name} after {number} changes"
            )
        store = open_store(root, 3)
        assert (store.start.manifest.step if store.start else 0) >= int((root / "said").read_text()[-1])
        for step in (11, 12):
            save(store, step)
        assert {d.name for d in root.glob("global_step_*")} == {"global_step_11", "global_step_12"}
        number += 1
    assert number > 50, "hardly anything was changed: no test"


def several_saves(root: Path) -> None:
    """First ones, one in both formats, one for which an old one goes, and one in the place of another branch's."""
    said = os.open(root / "said", os.O_APPEND | os.O_WRONLY)
    store = open_store(root, 1)
    for step, reshardable in ((1, True), (2, False), (2, True), (3, True)):
        save(store, step, reshardable)
        os.write(said, str(step).encode())
    os.write(said, b"2")
    save(open_store(root, 2, step=2), 3)
    os.write(said, b"3")


def is_named_as_one(directory: Path) -> bool:
    return STEP_DIRECTORY.fullmatch(directory.name) is not None


def killed_before(number: int, root: Path) -> bool:
    """Whether `several_saves`, in a process of its own, came to its change number `number`."""
    root.mkdir()
    (root / "said").write_text("0")
    child = os.fork()
    if not child:
        code = 1
        try:
            sys.addaudithook(Kill(number))
            several_saves(root)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, KILLED)
    return os.waitstatus_to_exitcode(status) == KILLED


class Kill:
    """An audit hook."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            self._left -= 1
            if self._left < 0:
                os._exit(KILLED)
