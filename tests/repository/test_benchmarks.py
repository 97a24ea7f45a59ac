"""What the benchmarks share: a mistake in it would show on a GPU machine, which is there for minutes."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import jobs, unproven
from benchmarks.queue import Queue

IGNORES_SIGNALS = "trap '' TERM; setsid sleep 600 & echo $!; while true; do sleep 0.1; done"
ENDS_LATE = "setsid sleep 600 & echo $!; sleep 600"


def test_a_job_that_ignores_signals_is_killed_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GOODBYE_SECONDS", 1.0)
    process = subprocess.Popen(["bash", "-c", IGNORES_SIGNALS], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    started = psutil.Process(int(process.stdout.readline()))
    assert jobs.stop(process) < 0
    started.wait(10)


def test_the_rule_of_unproven_families_is_lifted_in_children_too() -> None:
    found = "from rljob_api.families import FAMILIES; print({f.servers for f in FAMILIES.values()})"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {found!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", child], env=unproven.environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == "{('cpu', 'gpu')}"


@pytest.mark.parametrize(
    ("command", "ended"), [("setsid sleep 600 & echo $!; exit 3", "exit 3"), (ENDS_LATE, "not at its end")]
)
def test_nothing_that_a_run_started_is_there_when_the_next_one_begins(tmp_path: Path, command: str, ended: str) -> None:
    queue = Queue(tmp_path, tmp_path)
    left = f"kill -0 $(head -1 {tmp_path}/first.log)"
    queue.work_off(
        {
            "gpus": 0,
            "runs": {"first": {"seconds": 1, "run": command}, "second": {"seconds": 60, "run": left}},
        }
    )
    log = (tmp_path / "queue.log").read_text()
    assert f"first: {ended}" in log
    assert "second: exit 1" in log, "what the first one started lives on"
