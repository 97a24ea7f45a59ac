"""Evaluations are said as they come."""

import json
from pathlib import Path

from rljob_trainer.local.progress import Evaluations


def test_evaluations_that_are_written_from_now_on_are_said_once_with_own_metrics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert list(Evaluations(file).new()) == []
    file.write_text(json.dumps({"step": 0, "evaluation/reward": 0.25}) + "\n")
    evaluations = Evaluations(file)
    assert list(evaluations.new()) == [], "an earlier run has said it"
    line = json.dumps({"step": 5, "evaluation/reward": 0.5, "evaluation_metrics/correct": 1, "evaluation/failed": 0})
    with file.open("a") as log:
        log.write(json.dumps({"step": 5, "train/loss": 1.0}) + "\n" + line[:9])
        log.flush()
        assert list(evaluations.new()) == []
        log.write(line[9:] + "\n")
    assert list(evaluations.new()) == ["step 5: held-out reward 0.500, correct 1.000"]
    assert list(evaluations.new()) == []


def test_an_attempt_that_goes_back_says_only_what_it_measures_anew(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    first, second = (json.dumps({"step": step, "evaluation/loss": step / 8}) + "\n" for step in (5, 10))
    evaluations = Evaluations(file)
    file.write_text(first + second)
    assert list(evaluations.new()) == ["step 5: held-out loss 0.625", "step 10: held-out loss 1.250"]
    file.write_text(first)
    assert list(evaluations.new()) == []
    file.write_text(first + second)
    assert list(evaluations.new()) == ["step 10: held-out loss 1.250"]
