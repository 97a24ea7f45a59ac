"""What the client of SwanLab writes offline, and what becomes of jobs without the client, its key or its service.

The client is in no image and not in this environment. Tests with the real one run where RLJOB_SWANLAB names a directory that
`pip install --target` has put it into.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.protocol import Control, Resume
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting import tracker
from rljob_trainer.reporting.swanlab_server import PROJECT, SwanLab, connect

CLIENT = os.environ.get("RLJOB_SWANLAB", "")
with_the_client = pytest.mark.skipif(not CLIENT, reason="RLJOB_SWANLAB names no directory with the client")
ATTEMPT = """
import json, sys
from pathlib import Path
from rljob_api.protocol import Control
from rljob_trainer.reporting.sinks import Sinks
from rljob_trainer.reporting.swanlab_server import connect
from rljob_trainer.failure import ConfigurationError

control = Control.model_validate_json(sys.argv[1])
try:
    found = connect(control, {"SWANLAB_PROJ_NAME": "sums"})
except ConfigurationError as error:
    sys.exit(str(error))
if found is None:
    sys.exit(0)
sinks = Sinks(Path(control.spec.checkpoint.path), 3, 10, [found])
sinks.record(4, {"reward/mean": 0.5, "evaluation_sets/aime/pass@8": 0.25})
sinks.record(3, {"time/save": 0.25})
sinks.close(sys.argv[2])

from google.protobuf.json_format import MessageToDict
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader

(file,) = Path(control.spec.checkpoint.path).glob("swanlog/run-*/*.swanlab")
reader = DataStoreReader()
reader.open(file)
for raw in reader:
    record = Record()
    record.ParseFromString(raw)
    print("RECORD", json.dumps(MessageToDict(record)))
"""


def control(root: Path) -> Control:
    spec = make_spec(checkpoint={"path": str(root)})
    return Control(name="demo", namespace="ns", job_uid="uid", attempt=2, resume=Resume(policy="auto"), spec=spec)


def attempt(root: Path, end: str = "succeeded", **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which has the client's packages before ours."""
    home = {"HOME": str(root / "home"), "SWANLAB_SAVE_DIR": str(root / "home"), "PYTHONUNBUFFERED": "1"}
    paths = {"PYTHONPATH": os.pathsep.join([CLIENT, *filter(None, sys.path)])}
    command = [sys.executable, "-c", ATTEMPT, control(root).model_dump_json(by_alias=True), end]
    own = {name: value for name, value in os.environ.items() if not name.startswith("SWANLAB")}
    return subprocess.run(command, env=own | home | paths | environment, capture_output=True, text=True, cwd=root)


@with_the_client
@pytest.mark.slow
@pytest.mark.extra
def test_a_run_has_the_jobs_name_its_spec_and_metrics_of_any_step(tmp_path: Path) -> None:
    done = attempt(tmp_path, "failed", SWANLAB_MODE="offline")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RECORD")]
    text = json.dumps(records)
    points = [(r["scalar"]["key"], int(r["scalar"]["step"])) for r in records if "scalar" in r]
    assert sorted(points) == [("evaluation_sets/aime/pass@8", 4), ("reward/mean", 4), ("time/save", 3)]
    assert '"sums"' in text and '"demo"' in text and "CRASHED" in text
    assert str(tmp_path) in next((tmp_path / "swanlog").glob("run-*/files/config.yaml")).read_text()


@with_the_client
@pytest.mark.slow
@pytest.mark.extra
def test_a_missing_key_is_the_users_to_give(tmp_path: Path) -> None:
    said = attempt(tmp_path).stderr.splitlines()[-1]
    assert said.startswith("spec.env = SWANLAB_PROJ_NAME=sums: swanlab refuses: ") and "give SWANLAB_API_KEY" in said


@with_the_client
@pytest.mark.slow
@pytest.mark.extra
def test_training_does_not_wait_for_a_service_that_does_not_answer(tmp_path: Path) -> None:
    away = {"SWANLAB_API_KEY": "0" * 21, "SWANLAB_API_HOST": "http://127.0.0.1:9"}
    done = attempt(tmp_path, **away)
    assert done.returncode == 0 and "SwanLab gets nothing of this attempt" in done.stderr


def test_a_job_that_asks_for_it_without_the_client_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    for name in ("SWANLAB_INTERACTIVE", "SWANLAB_TERMINAL_PROXY_TYPE"):
        monkeypatch.setenv(name, "")
    with pytest.raises(ConfigurationError, match=r"SWANLAB_PROJ_NAME=sums: the client cannot be imported.*pip install"):
        connect(control(tmp_path), {PROJECT: "sums"})


def test_nobody_is_called_who_was_not_asked_for(tmp_path: Path) -> None:
    assert connect(control(tmp_path), {}) is None


def test_a_job_does_not_wait_for_a_service_that_went_away_before_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away, ends = threading.Event(), list[dict[str, Any]]()

    def finish(**how: Any) -> None:
        ends.append(how)
        away.wait()

    monkeypatch.setattr(tracker, "GOODBYE_SECONDS", 0.1)
    SwanLab(SimpleNamespace(finish=finish)).close("drained")
    assert "SwanLab may lack the last points" in caplog.text and ends == [{"state": "aborted"}]
    away.set()
