"""What a run directory shows, whatever lies in it."""

import json
import os
from pathlib import Path

import pytest

from rljob_api import names
from rljob_trainer.viewer import runs
from rljob_trainer.viewer.runs import MOST_POINTS, RunFiles, UnreadableRun


def run(root: Path, *lines: object) -> RunFiles:
    """With these lines of metrics; texts as they are."""
    written = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    names.metrics_file(root).write_text("".join(line + "\n" for line in written))
    return RunFiles(root)


def test_all_lines_of_a_step_are_one_point_and_absent_values_are_null(tmp_path: Path) -> None:
    found = run(tmp_path, {"step": 2, "a": 1.5}, {"step": 1, "b": 2}, {"step": 2, "b": 3}).metrics()
    assert found == {"steps": [1, 2], "values": {"a": [None, 1.5], "b": [2, 3]}}


def test_a_long_run_is_thinned_evenly_and_keeps_its_last_step(tmp_path: Path) -> None:
    last = 5 * MOST_POINTS + 3
    found = run(tmp_path, *({"step": step, "a": step} for step in range(1, last + 1))).metrics()
    assert len(found["steps"]) <= MOST_POINTS + 1 and found["steps"][-1] == last == found["values"]["a"][-1]
    assert {b - a for a, b in zip(found["steps"], found["steps"][1:-1], strict=False)} == {6}


@pytest.mark.parametrize(
    "line",
    ['{"step": 3, "a": ', "[1]", "", "\x00", "[" * 100_000, '{"a": 1}', '{"step": true, "a": 1}', '{"step": "3"}'],
)
def test_a_line_that_is_no_record_of_a_step_is_left_out(tmp_path: Path, line: str) -> None:
    assert run(tmp_path, {"step": 1, "a": 1}, line).metrics() == {"steps": [1], "values": {"a": [1]}}


def test_a_value_that_is_no_finite_number_is_none(tmp_path: Path) -> None:
    line = '{"step": 1, "a": NaN, "b": Infinity, "c": "<b>", "d": true, "e": 1, "f": {"g": 1}}'
    assert run(tmp_path, line).metrics() == {"steps": [1], "values": {"e": [1]}}


def test_a_number_that_a_browser_does_not_have_is_none_or_null(tmp_path: Path) -> None:
    large = "9" * 400
    assert run(tmp_path, f'{{"step": 1, "a": {large}, "b": 1e999, "c": 2}}').metrics()["values"] == {"c": [2]}
    (tmp_path / "samples").mkdir()
    names.samples_file(tmp_path, 1).write_text(f'{{"a": [NaN, -Infinity, 1e999, {large}, -1.5, 12]}}\n')
    assert RunFiles(tmp_path).samples(1) == [{"a": [None, None, None, None, -1.5, 12]}]


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_a_text_may_hold_what_unicode_calls_the_end_of_a_line(tmp_path: Path, end: str) -> None:
    (tmp_path / "samples").mkdir()
    sample = {"response": f"a{end}b"}
    names.samples_file(tmp_path, 1).write_text(json.dumps(sample, ensure_ascii=False) + "\n", encoding="utf-8")
    assert RunFiles(tmp_path).samples(1) == [sample]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    names.metrics_file(tmp_path).symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "samples").mkdir()
    names.samples_file(tmp_path, 1).symlink_to(tmp_path / "pipe")
    with pytest.raises(UnreadableRun, match=r"metrics.jsonl is no regular file"):
        RunFiles(tmp_path).metrics()
    with pytest.raises(UnreadableRun, match=r"step_1.jsonl is no regular file"):
        RunFiles(tmp_path).samples(1)


def test_only_files_of_samples_count_as_steps(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for name in ("step_2.jsonl", "step_10.jsonl", "step_x.jsonl", "step_1_before.jsonl", "step_4.json"):
        (tmp_path / "samples" / name).write_text('{"reward": 1}\n')
    assert RunFiles(tmp_path).described() == {
        "name": tmp_path.name,
        "path": str(tmp_path),
        "samples": [2, 10],
        "spans": [],
    }
    assert RunFiles(tmp_path).samples(10) == [{"reward": 1}]


def test_what_is_absent_or_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableRun, match=r"step_7.jsonl cannot be read: No such file"):
        RunFiles(tmp_path).samples(7)
    found = run(tmp_path, {"step": 1, "a": 1})
    monkeypatch.setattr(runs, "MOST_BYTES", 10)
    with pytest.raises(UnreadableRun, match=r"metrics.jsonl has \d+ bytes, and at most 10 are read"):
        found.metrics()
