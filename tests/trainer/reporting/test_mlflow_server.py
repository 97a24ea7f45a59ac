"""What the client of MLflow writes to a directory of its own format, and what becomes of servers that refuse, or do not answer."""

import logging
import math
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.protocol import Control, Resume
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting import mlflow_server, tracker
from rljob_trainer.reporting.mlflow_server import ADDRESS, DEFAULTS, connect
from rljob_trainer.reporting.sinks import Sinks
from rljob_trainer.reporting.tracker import RunStatus
from web_server import answering

pytestmark = pytest.mark.slow  # imports the client, which takes five seconds


@pytest.fixture(autouse=True)
def client_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `connect`, for as long as a test lasts, without waiting."""
    for name, value in (DEFAULTS | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}).items():
        monkeypatch.setenv(name, value)


def control(root: Path, uid: str = "uid", attempt: int = 1) -> Control:
    spec = make_spec(checkpoint={"path": str(root)})
    return Control(name="demo", namespace="ns", job_uid=uid, attempt=attempt, resume=Resume(policy="auto"), spec=spec)


def runs(address: str) -> tuple[Any, list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("sums")
    return client, list(client.search_runs([experiment.experiment_id]))


def test_all_attempts_of_a_job_are_one_run_with_its_metrics_and_its_spec(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/mlruns"
    asked = {ADDRESS: address, "MLFLOW_EXPERIMENT_NAME": "sums"}
    first = connect(control(tmp_path), asked)
    assert first
    sinks = Sinks(tmp_path, 3, 10, [first])
    sinks.record(4, {"reward/mean": 0.5, "evaluation_sets/aime/pass@8": 0.25})
    sinks.record(3, {"time/save": math.inf})
    sinks.close()
    for uid in ("uid", "of another job"):
        again = connect(control(tmp_path, uid, attempt=2), asked)
        assert again
        again.append(5, {"reward/mean": 0.75})
        again.close("succeeded")
    client, found = runs(address)
    run = next(r for r in found if r.data.tags[mlflow_server.JOB_TAG] == "uid")
    assert len(found) == 2
    points = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "reward/mean")]
    assert points == [(4, 0.5), (5, 0.75)]
    assert run.data.metrics["evaluation_sets/aime/pass_8"] == 0.25, "the name has no @ there"
    assert client.get_metric_history(run.info.run_id, "time/save")[0].step == 3
    assert (run.info.run_name, run.info.status) == ("demo", "FINISHED")
    assert run.data.params["spec.checkpoint.path"] == str(tmp_path)
    others = ("spec.sft.", "spec.dpo.", "spec.data.maxTokens")
    assert not [name for name in run.data.params if name.startswith(others)], "of other tasks"


@pytest.mark.parametrize(("end", "status"), [("drained", "KILLED"), ("failed", "FAILED")])
def test_a_run_that_did_not_reach_its_end_is_not_shown_as_finished(end: RunStatus, status: str, tmp_path: Path) -> None:
    asked = {ADDRESS: f"file://{tmp_path}/mlruns", "MLFLOW_EXPERIMENT_NAME": "sums"}
    attempt = connect(control(tmp_path), asked)
    assert attempt
    Sinks(tmp_path, 0, 10, [attempt]).close(end)
    assert runs(asked[ADDRESS])[1][0].info.status == status
    assert connect(control(tmp_path, attempt=2), asked)
    assert runs(asked[ADDRESS])[1][0].info.status == "RUNNING", "the next attempt continues it"


def test_nobody_is_called_who_was_not_asked_for(tmp_path: Path) -> None:
    assert connect(control(tmp_path), {}) is None


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_the_users_to_correct(status: int, tmp_path: Path) -> None:
    with answering(refusing(status)) as address, pytest.raises(ConfigurationError, match="MLflow refuses") as caught:
        connect(control(tmp_path), {ADDRESS: address})
    assert (caught.value.field, caught.value.value) == ("spec.env", f"{ADDRESS}={address}")
    assert "MLFLOW_TRACKING_TOKEN" in caught.value.fix


def test_training_does_not_wait_for_a_server_that_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(refusing(503)) as address:
        assert connect(control(tmp_path), {ADDRESS: address}) is None
    assert connect(control(tmp_path), {ADDRESS: address}) is None, "nobody listens there any more"
    assert caplog.text.count("MLflow gets nothing of this attempt") == 2


def test_what_a_server_did_not_take_is_said_and_the_rest_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"file://{tmp_path}/mlruns"
    found = connect(control(tmp_path), {ADDRESS: address, "MLFLOW_EXPERIMENT_NAME": "sums"})
    assert found
    found.append(1, {"in//the way": 0.5})
    found.append(2, {"reward/mean": 0.5})
    with caplog.at_level(logging.WARNING):
        found.close("succeeded")
    assert "MLflow lacks metrics of step 1" in caplog.text
    assert runs(address)[1][0].data.metrics == {"reward/mean": 0.5}


def test_a_job_does_not_wait_for_a_server_that_went_away_before_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()

    class Client:
        def set_terminated(self, run: str, status: str) -> None:
            away.wait()

    monkeypatch.setattr(tracker, "GOODBYE_SECONDS", 0.1)
    mlflow_server.MLflow(Client(), "run").close("succeeded")
    assert "may lack the last points" in caplog.text
    away.set()


def refusing(status: int) -> type[BaseHTTPRequestHandler]:
    """Says the same to everybody."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        do_POST = do_GET  # noqa: N815 - named by its base

        def log_message(self, *arguments: object) -> None: ...

    return Handler
