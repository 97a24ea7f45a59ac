"""A kill before each single change of a directory that saving makes, one after the other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_trainer.checkpoint.files import Tally
from rljob_trainer.checkpoint.manifest import STEP_DIRECTORY, read_manifest
from trainer.checkpoint.killed import KILLED
from trainer.checkpoint.saving import open_store, save


def test_a_kill_at_each_point_leaves_whole_checkpoints_only_and_nothing_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # as in killed.py: eight tenths of a save's time
    number = 0
    with killer() as process:
        while killed_before(process, number, root := tmp_path / str(number)):
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


def is_named_as_one(directory: Path) -> bool:
    return STEP_DIRECTORY.fullmatch(directory.name) is not None


@contextmanager
def killer() -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join(p for p in sys.path if p)
    command = (sys.executable, "-m", "trainer.checkpoint.killed")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"PYTHONPATH": paths}
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def killed_before(process: subprocess.Popen[str], number: int, root: Path) -> bool:
    """Whether the saves came to their change of that number."""
    assert process.stdin and process.stdout
    print(number, root, file=process.stdin, flush=True)
    code = int(process.stdout.readline())
    assert code in (0, KILLED)
    return code == KILLED
