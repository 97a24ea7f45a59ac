"""The trackers that a job's environment names."""

from collections.abc import Mapping

from rljob_api.protocol import Control
from rljob_trainer.reporting import mlflow_server, weights_and_biases
from rljob_trainer.reporting.tracker import Tracker


def connect(control: Control, environment: Mapping[str, str]) -> list[Tracker]:
    """Those that are asked for and answer. Raises ConfigurationError where one cannot work."""
    found: list[Tracker | None] = [
        weights_and_biases.connect(control, environment),
        mlflow_server.connect(control, environment),
    ]
    return [tracker for tracker in found if tracker]
