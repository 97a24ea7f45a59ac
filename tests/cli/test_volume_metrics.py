"""Metrics of all steps, read from a job's volume, which is a directory of this machine here; and TensorBoard on it."""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Rljob
from cli.fake_api import FakeApi
from cli.makers import make_job, make_spec
from kubectl_rljob import pod_access
from kubectl_rljob.verbs import volume
from rljob_api import names
from rljob_trainer.machine import free_port

Kubectl = Callable[[], list[str]]
LINES = (
    {"step": 1, "train/kl": 0.5, "reward/mean": 0.25},
    {"step": 1, "time/save": 2.0},
    {"step": 2, "train/kl": 0.75, "reward/mean": 0.5},
    {"step": 10, "train/kl": 1.0, "note": "text"},
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_access, "POLL", 0.01)


@pytest.fixture
def ended(api: FakeApi, tmp_path: Path) -> Path:
    """The directory of a job that has ended. Its last line was cut off by a kill."""
    run = tmp_path / "run"
    run.mkdir()
    names.metrics_file(run).write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"step": 11, "tra')
    spec = make_spec(checkpoint={"path": str(run)})
    api.add(make_job(state="Succeeded", outcome="Succeeded", attempt={"number": 1}, spec=spec))
    return run


def deleted(api: FakeApi) -> int:
    return sum(method == "DELETE" for method, _, _ in api.requests)


@pytest.mark.usefixtures("ended", "kubectl")
def test_any_metric_of_a_job_that_has_ended_is_read_from_its_volume(api: FakeApi, rljob: Rljob) -> None:
    screen = rljob("metrics", "demo", "--metric", "train/kl", "--metric", "time/save", "-o", "json")
    assert json.loads(screen.out) == [
        {"step": 1, "train/kl": 0.5, "time/save": 2.0},
        {"step": 2, "train/kl": 0.75},
        {"step": 10, "train/kl": 1.0},
    ]
    assert deleted(api) == 1


@pytest.mark.usefixtures("ended", "kubectl")
def test_its_curve_has_a_title_and_the_steps_that_it_covers(rljob: Rljob) -> None:
    screen = rljob("metrics", "demo", "--metric", "reward/mean")
    assert screen.code == 0
    assert "reward/mean" in screen.out and screen.out.endswith("steps 1-2\n")


@pytest.mark.usefixtures("ended", "kubectl")
def test_a_metric_that_no_step_has_is_named_with_those_that_are_near(rljob: Rljob) -> None:
    screen = rljob("metrics", "demo", "--metric", "train/kk")
    assert screen.code == 1
    assert (
        "error: --metric train/kk: rljob demo in namespace research has no such metric; there is, for example, train/kl"
        in screen.err
    )


@pytest.mark.usefixtures("kubectl")
def test_a_volume_that_was_emptied_says_so(rljob: Rljob, ended: Path) -> None:
    names.metrics_file(ended).unlink()
    screen = rljob("metrics", "demo", "--metric", "train/kl")
    assert screen.code == 1
    assert screen.err.splitlines()[-2:] == [
        "error: rljob demo in namespace research has not finished a step yet, or its volume was emptied: "
        f"{names.metrics_file(ended)} is not there",
        "next:  kubectl rljob status demo -n research",
    ]


FORWARDING = """\
#!/bin/sh
# Runs on this machine what it is asked to run in a pod. A forwarded port is one of this machine already.
echo "$@" >> "$NOTES"
case "$*" in *port-forward*) exec sleep 600;; esac
for argument; do shift; [ "$argument" = -- ] && break; done
exec "$@"
"""


@pytest.fixture
def forwarding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    directory, notes = tmp_path / "bin", tmp_path / "notes"
    directory.mkdir()
    (directory / "kubectl").write_text(FORWARDING)
    (directory / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in directory.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(notes))
    return lambda: notes.read_text().splitlines() if notes.exists() else []


def look(forwarding: Kubectl, url: str) -> list[object]:
    """What is answered there once the port is forwarded; then the user presses Ctrl-C."""
    answers: list[object] = []

    def once() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not any("port-forward" in line for line in forwarding()):
            time.sleep(0.05)
        try:
            with urllib.request.urlopen(url, timeout=300) as answer:
                answers.append(json.load(answer))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=once, daemon=True).start()
    return answers


@pytest.mark.slow
@pytest.mark.usefixtures("ended")
def test_tensorboard_answers_until_it_is_interrupted_and_the_pod_goes(
    api: FakeApi, rljob: Rljob, forwarding: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr(volume, "PORT", port)
    answers = look(forwarding, f"http://127.0.0.1:{port}/data/environment")
    screen = rljob("tensorboard", "demo", "--port", str(port))
    assert screen.code == 130
    assert f"rljob demo in namespace research: http://localhost:{port} until you press Ctrl-C\n" in screen.err
    (found,) = answers
    assert isinstance(found, dict) and found["data_location"].endswith("/run/tensorboard")
    assert "port-forward demo-shell-" in " ".join(forwarding()) and deleted(api) == 1


@pytest.mark.slow
def test_the_page_of_a_run_and_another_one_answers_until_it_is_interrupted_and_the_pod_goes(
    api: FakeApi, rljob: Rljob, forwarding: Kubectl, monkeypatch: pytest.MonkeyPatch, ended: Path, tmp_path: Path
) -> None:
    port = free_port()
    monkeypatch.setattr(names, "VIEW_PORT", port)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/metrics.jsonl").touch()
    answers = look(forwarding, f"http://127.0.0.1:{port}/api/runs")
    screen = rljob("view", "demo", "--port", str(port), "--compare", str(tmp_path / "other"))
    assert screen.code == 130 and f"http://localhost:{port} until you press Ctrl-C\n" in screen.err
    expected = [
        {"name": path.name, "path": str(path), "samples": [], "spans": []} for path in (ended, tmp_path / "other")
    ]
    assert answers == [expected] and deleted(api) == 1


@pytest.mark.usefixtures("ended")
def test_what_tensorboard_says_when_it_cannot_run_is_the_error(
    api: FakeApi, rljob: Rljob, kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "bin/python").write_text("#!/bin/sh\necho 'No module named tensorboard' >&2\nexit 1\n")
    (tmp_path / "bin/python").chmod(0o755)
    screen = rljob("tensorboard", "demo")
    assert screen.code == 1 and "No module named tensorboard\n" in screen.err and deleted(api) == 1
