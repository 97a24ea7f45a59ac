"""Which exports of a run are deleted."""

from pathlib import Path

from rljob_api import names
from rljob_trainer.checkpoint.exports import superseded


def test_the_newest_periodic_exports_are_kept_and_those_that_somebody_made_by_hand(tmp_path: Path) -> None:
    for step in (9, 10, 20, 30, 25):
        names.export_dir(tmp_path, step).mkdir(parents=True)
    (names.exports_dir(tmp_path) / "step_40.tmp").mkdir()
    assert [d.name for d in superseded(tmp_path, every=10, kept=2)] == ["step_10"]
