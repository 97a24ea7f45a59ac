"""How long a wait will take, from how long it took the last time."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.protocol import Point, Progress
from rljob_trainer.local.earlier import MOST, Waits, remembered_in
from rljob_trainer.local.progress import Wait

LOADING, WAITING, TRAINING = (Progress(phase=phase) for phase in ("loading", "waiting", "training"))
STEPS = Progress(phase="waiting", history=[Point(step=1, loss=1.0, seconds=2.0)])


def run(file: Path, *moments: tuple[float, Progress | None], **changes: Any) -> list[Wait | None]:
    waits = Waits(make_spec(**changes), file)
    return [waits.now(progress, at) for at, progress in moments]


def test_a_wait_takes_about_what_it_took_the_last_time(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "waits.json"
    first = run(file, (0, None), (2, LOADING), (12, LOADING), (20, WAITING), (75, WAITING), (80, TRAINING))
    assert first == [None, Wait(0, None), Wait(10, None), Wait(0, None), Wait(55, None), None]
    again = run(file, (5, LOADING), (6, WAITING), (46, WAITING), (70, STEPS))
    assert again == [Wait(0, 18.0), Wait(0, 60.0), Wait(40, 60.0), None]
    assert run(file, (0, WAITING))[0] == Wait(0, 64.0), "the newest one counts"


def test_another_model_or_layout_tells_nothing(tmp_path: Path) -> None:
    file = tmp_path / "waits.json"
    run(file, (0, WAITING), (60, TRAINING))
    assert run(file, (0, WAITING), model={"path": "/data/other"}) == [Wait(0, None)]


def test_a_wait_that_was_broken_off_is_not_remembered(tmp_path: Path) -> None:
    run(tmp_path / "waits.json", (0, WAITING), (3, None))
    assert not (tmp_path / "waits.json").exists()


def test_few_waits_are_remembered(tmp_path: Path) -> None:
    file = tmp_path / "waits.json"
    for i in range(MOST + 5):
        run(file, (0, WAITING), (i, TRAINING), model={"path": f"/data/{i}"})
    known = json.loads(file.read_text())
    assert len(known) == MOST and f"/data/{MOST + 4} " in list(known)[-1]


@pytest.mark.parametrize("text", ["", "[1]", '{"waiting": []}', "\x00"])
def test_a_cache_that_says_something_else_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "waits.json").write_text(text)
    assert run(tmp_path / "waits.json", (0, WAITING)) == [Wait(0, None)]


def test_a_cache_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "waits.json", (0, WAITING), (9, TRAINING)) == [Wait(0, None), None]


def test_the_cache_is_the_users() -> None:
    assert remembered_in({"XDG_CACHE_HOME": "/c", "HOME": "/home/a"}) == Path("/c/rljob/waits.json")
    assert remembered_in({"HOME": "/home/a"}) == Path("/home/a/.cache/rljob/waits.json")
