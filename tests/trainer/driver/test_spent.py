"""The seconds of an attempt are divided among its phases, and none is missing."""

import time
from pathlib import Path

from api.specs import make_spec
from rljob_api.protocol import Progress
from rljob_trainer.driver.reporter import Alarms, Reporter
from rljob_trainer.wire.launcher_files import ProgressFile


def test_each_phase_gets_its_time_when_it_ends(tmp_path: Path) -> None:
    before = time.monotonic()
    file = ProgressFile(tmp_path / "progress.json")
    after = time.monotonic()
    reporter = Reporter(file, lambda: True, list, str, Alarms(make_spec()))
    reporter.work("generating")
    for _ in range(3):
        for phase in ("", "scoring", "training", "syncing"):
            reporter.enter(phase)
            reporter.moved()
    reporter.enter("saving")
    file.flush()
    spent = Progress.model_validate_json((tmp_path / "progress.json").read_text()).spent
    assert list(spent) == ["loading", "generating", "scoring", "training", "syncing"], "saving goes on"
    assert 0 < sum(spent.values()) <= time.monotonic() - before
    reporter.enter("saving")
    assert file.progress.spent == spent, "it has not ended yet"
    ends = time.monotonic()
    reporter.enter("finishing")
    whole = sum(file.progress.spent.values())
    assert ends - after <= whole <= time.monotonic() - before
