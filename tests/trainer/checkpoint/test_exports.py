"""Which exports of a run are deleted."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_api import names
from rljob_trainer.checkpoint.exports import complete, prune, superseded
from rljob_trainer.checkpoint.files import give_name, remove, replace, sweep


def test_the_newest_periodic_exports_are_kept_and_those_that_somebody_made_by_hand(tmp_path: Path) -> None:
    for step in (9, 10, 20, 30, 25):
        names.export_dir(tmp_path, step).mkdir(parents=True)
    (names.exports_dir(tmp_path) / "step_40.tmp").mkdir()
    assert [d.name for d in superseded(tmp_path, every=10, kept=2)] == ["step_10"]


def test_an_export_takes_the_place_of_another_and_nobody_loses_a_backup(tmp_path: Path) -> None:
    for name in ("step_1", "step_1.old", "step_1.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "of").write_text(name)
    replace(tmp_path / "step_1.tmp", tmp_path / "step_1")
    assert {d.name: (d / "of").read_text() for d in tmp_path.iterdir()} == {
        "step_1": "step_1.tmp",
        "step_1.old": "step_1.old",
    }


def test_a_directory_gets_no_name_that_another_has(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "somebody's").touch()
    with pytest.raises(OSError, match="not empty"):
        give_name(tmp_path / "scratch", tmp_path / "out")
    assert (tmp_path / "out" / "somebody's").is_file()


def test_what_could_not_be_deleted_is_deleted_later_and_stops_no_other_deletion(tmp_path: Path) -> None:
    export = names.export_dir(tmp_path, 1)
    with failing("unlink"):
        for _ in range(2):
            export.mkdir(parents=True)
            (export / ".nfs1").touch()
            remove(export)
    assert len(list(export.parent.iterdir())) == 2, "nothing was left behind: no test"
    assert not complete(tmp_path)
    sweep(export.parent)
    assert not list(export.parent.iterdir())


def test_an_export_that_cannot_be_deleted_ends_no_attempt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        names.export_dir(tmp_path, step).mkdir(parents=True)
    with failing("rename"):
        prune(tmp_path, every=1, kept=1)
    assert list(complete(tmp_path)) == [1, 2] and "step_1 is not deleted" in caplog.text
    prune(tmp_path, every=1, kept=1)
    assert list(complete(tmp_path)) == [2]


@contextmanager
def failing(call: str) -> Iterator[None]:
    """A volume on which this call of the system fails."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield
