"""What the client of Weights & Biases is told; the client is a stand-in, since no image of ours has it."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.specs import make_spec
from rljob_api.protocol import Control, Resume
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting import weights_and_biases
from rljob_trainer.reporting.sinks import Sinks
from rljob_trainer.reporting.weights_and_biases import PROJECT, connect

ASKED = {PROJECT: "sums"}


class Client(SimpleNamespace):
    """As much of the package `wandb` as we call. `refusal`: what `init` raises."""

    class Error(Exception): ...

    class UsageError(Error): ...

    class CommError(Error): ...

    class AuthenticationError(CommError): ...

    def __init__(self, refusal: type[Exception] | None = None) -> None:
        super().__init__(errors=Client, Settings=dict, refusal=refusal, begun={}, logged=[], finished=0)

    def init(self, **arguments: Any) -> "Client":
        if self.refusal:
            raise self.refusal("not so")
        self.begun = arguments
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes = {name: step_metric}

    def log(self, metrics: dict[str, float]) -> None:
        self.logged.append(metrics)

    def finish(self) -> None:
        self.finished += 1


def control(root: Path) -> Control:
    spec = make_spec(checkpoint={"path": str(root)})
    return Control(name="demo", namespace="ns", job_uid="uid", attempt=2, resume=Resume(policy="auto"), spec=spec)


def test_all_attempts_of_a_job_are_one_run_with_its_metrics_and_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    monkeypatch.setitem(sys.modules, "wandb", client)
    sinks = Sinks(tmp_path, 3, 10, connect(control(tmp_path), ASKED))
    sinks.record(4, {"reward/mean": 0.5})
    sinks.record(3, {"time/save": 0.25})
    sinks.close()
    assert client.logged == [{"reward/mean": 0.5, "step": 4}, {"time/save": 0.25, "step": 3}]
    assert client.axes == {"*": "step"}, "by the client's own step the second would be dropped"
    assert client.finished == 1
    assert (client.begun["id"], client.begun["name"], client.begun["resume"]) == ("uid", "demo", "allow")
    assert client.begun["config"]["checkpoint"]["path"] == client.begun["dir"] == str(tmp_path)


def test_nobody_is_called_who_was_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert connect(control(tmp_path), {}) is None


def test_an_image_without_the_client_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"spec.env = WANDB_PROJECT=sums: the image has no client"):
        connect(control(tmp_path), ASKED)


@pytest.mark.parametrize("refusal", [Client.UsageError, Client.AuthenticationError])
def test_a_missing_key_is_the_users_to_mend(
    refusal: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Client(refusal))
    with pytest.raises(ConfigurationError, match="not so; give WANDB_API_KEY"):
        connect(control(tmp_path), ASKED)


def test_training_does_not_wait_for_a_service_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Client(Client.CommError))
    assert connect(control(tmp_path), ASKED) is None


def test_a_job_does_not_wait_for_a_service_that_went_away_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    client = Client()
    client.finish = away.wait
    monkeypatch.setitem(sys.modules, "wandb", client)
    monkeypatch.setattr(weights_and_biases, "GOODBYE_SECONDS", 0.1)
    Sinks(tmp_path, 3, 10, connect(control(tmp_path), ASKED)).close()
    assert "may lack the last points" in caplog.text
    away.set()
