"""What the client of Weights & Biases writes offline, and what becomes of jobs whose key is missing, or whose service does not answer."""

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.protocol import Control, Resume
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting import tracker
from rljob_trainer.reporting.sinks import Sinks
from rljob_trainer.reporting.weights_and_biases import PROJECT, WeightsAndBiases, connect

slow = pytest.mark.slow  # starts the client's own process
ASKED = {PROJECT: "sums"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Reads variables when it starts for the first time, and somebody's key from the home directory."""
    for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name, value in {**ASKED, "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    import wandb

    yield wandb
    wandb.teardown()


def control(root: Path) -> Control:
    spec = make_spec(checkpoint={"path": str(root)})
    return Control(name="demo", namespace="ns", job_uid="uid", attempt=2, resume=Resume(policy="auto"), spec=spec)


@slow
def test_a_run_has_the_jobs_name_its_spec_and_metrics_of_any_step(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = connect(control(tmp_path), ASKED)
    assert found
    sinks = Sinks(tmp_path, 3, 10, [found])
    sinks.record(4, {"reward/mean": 0.5})
    sinks.record(3, {"time/save": 0.25})
    sinks.close()
    client.teardown()  # its process writes the last block when it ends
    written = list(records(next(tmp_path.glob("wandb/offline-run-*/run-uid.wandb"))))
    lines = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in r.history.item}
        for r in written
        if r.HasField("history")
    ]
    assert [(line["step"], line.get("reward/mean"), line.get("time/save")) for line in lines] == [
        (4, 0.5, None),
        (3, None, 0.25),
    ]
    axes = {r.metric.glob_name: r.metric.step_metric for r in written if r.HasField("metric")}
    assert axes["*"] == "step", "by the client's own step the second would be dropped"
    run = next(r.run for r in written if r.HasField("run"))
    assert (run.run_id, run.display_name, run.run_group, run.project) == ("uid", "demo", "ns", "sums")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["checkpoint"]["path"] == str(tmp_path)


def records(file: Path) -> Iterator[Any]:
    """In LevelDB's log format: blocks of 32 KiB, chunks with checksum, length and kind (1 whole, 2 first, 3 middle, 4 last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, record = file.read_bytes(), len(b":W&B") + 3, b""
    while at + 7 <= len(content):
        if (rest := 32768 - at % 32768) < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record)
            record = b""


def test_nobody_is_called_who_was_not_asked_for(tmp_path: Path) -> None:
    assert connect(control(tmp_path), {}) is None


@slow
def test_a_missing_key_is_the_users_to_give(tmp_path: Path, client: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"spec.env = {PROJECT}=sums: wandb refuses: .*; give WANDB_API_KEY"):
        connect(control(tmp_path), ASKED)


@slow
def test_training_does_not_wait_for_a_service_that_does_not_answer(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    assert connect(control(tmp_path), ASKED) is None
    assert "Weights & Biases gets nothing of this attempt" in caplog.text


def test_a_job_does_not_wait_for_a_service_that_went_away_before_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    run = SimpleNamespace(define_metric=lambda name, step_metric: None, finish=lambda exit_code: away.wait())
    monkeypatch.setattr(tracker, "GOODBYE_SECONDS", 0.1)
    WeightsAndBiases(run).close("succeeded")
    assert "may lack the last points" in caplog.text
    away.set()
