"""The seconds of an attempt are divided among its phases, and none is missing."""

import time
from pathlib import Path

import pytest

from api.specs import make_spec
from rljob_api.protocol import Progress
from rljob_trainer.driver.reporter import Alarms, Reporter
from rljob_trainer.wire.launcher_files import ProgressFile


def test_each_phase_gets_its_time_when_it_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    file = ProgressFile(tmp_path / "progress.json")
    reporter = Reporter(file, lambda: True, list, str, Alarms(make_spec()))
    reporter.work("generating")
    for _ in range(3):
        for phase in ("", "scoring", "training", "syncing"):
            reporter.enter(phase)
            reporter.moved()
    reporter.enter("saving")
    passed = time.monotonic() - began
    file.flush()
    spent = Progress.model_validate_json((tmp_path / "progress.json").read_text()).spent
    assert list(spent) == ["loading", "generating", "scoring", "training", "syncing"], "saving goes on"
    assert 0 < sum(spent.values()) <= passed
    reporter.enter("saving")
    assert file.progress.spent == spent, "it has not ended yet"
    reporter.enter("finishing")
    whole = sum(file.progress.spent.values())
    assert passed - sum(spent.values()) <= whole <= time.monotonic() - began
    assert whole == pytest.approx(time.monotonic() - began, abs=0.5)
