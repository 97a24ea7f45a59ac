"""What the benchmarks share: a mistake in it would show on a GPU machine, which is there for minutes."""

import subprocess
import sys

import psutil
import pytest

from benchmarks import jobs, unproven

IGNORES_SIGNALS = "trap '' TERM; setsid sleep 600 & echo $!; while true; do sleep 0.1; done"


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
