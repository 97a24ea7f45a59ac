"""MLflow, where a job's environment names MLFLOW_TRACKING_URI.

The client reads its settings from variables itself (MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME, ...), so spec.env and spec.envFrom say all of
them.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import batched
from queue import SimpleQueue
from typing import Any

from rljob_api.protocol import Control
from rljob_api.rules.task import read_by_task
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting.tracker import RunStatus, wait_for_last_points

ADDRESS, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
JOB_TAG = "rljob.dev/uid"
"""Marks the run of a job, so that its next attempt finds it."""
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
"""No reports to others than the job's own server; some seconds of patience, not the client's four minutes; and a directory in place of a server."""
FORBIDDEN = re.compile(r"[^\w.\- /:]")
"""What a metric's name may not have in MLflow: `pass@8` becomes `pass_8`."""
MOST_PARAMETERS = 100
"""In one request."""

STATUS: dict[RunStatus, str] = {"succeeded": "FINISHED", "drained": "KILLED", "failed": "FAILED"}
"""Of a run while no attempt writes to it."""

log = logging.getLogger(__name__)


class MLflow:
    """One run per job, which a thread writes to."""

    def __init__(self, client: Any, run: str):
        self._client, self._run = client, run
        self._waiting: SimpleQueue[tuple[int, Mapping[str, float]] | str] = SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._sender.start()

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        self._waiting.put((step, dict(metrics)))

    def close(self, end: RunStatus) -> None:
        self._waiting.put(STATUS[end])
        wait_for_last_points(self._sender, "MLflow")

    def _send_all(self) -> None:
        from mlflow.exceptions import MlflowException

        while True:
            waiting = self._waiting.get()
            if isinstance(waiting, str):
                break
            try:
                self._send(*waiting)
            except MlflowException as error:
                log.warning("MLflow lacks metrics of step %d: %s", waiting[0], error)
        try:
            self._client.set_terminated(self._run, waiting)
        except MlflowException as error:
            log.warning("MLflow shows the run as still running: %s", error)

    def _send(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        points = [Metric(FORBIDDEN.sub("_", name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=points)


def connect(control: Control, environment: Mapping[str, str]) -> MLflow | None:
    """None where it is not asked for, or does not answer: training does not wait for somebody else's service.

    Raises ConfigurationError where it cannot work.
    """
    address = environment.get(ADDRESS)
    if not address:
        return None
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=address)
        return MLflow(client, _run(client, environment.get(EXPERIMENT, "Default"), control))
    except MlflowException as error:
        if error.get_http_status_code() < 500:
            fix = "correct the address; give MLFLOW_TRACKING_TOKEN, or user name and password, from a Secret in spec.envFrom"
            raise ConfigurationError("spec.env", f"{ADDRESS}={address}", f"MLflow refuses: {error}", fix) from error
        log.warning("MLflow gets nothing of this attempt: %s", error)
        return None


def _run(client: Any, experiment: str, control: Control) -> str:
    """The id of the job's run: that of an earlier attempt, or a new one with the spec as its parameters."""
    from mlflow.entities import Param

    existing = client.get_experiment_by_name(experiment)
    where = existing.experiment_id if existing else client.create_experiment(experiment)
    runs = client.search_runs([where], f"tags.`{JOB_TAG}` = '{control.job_uid}'", max_results=1)
    if runs:
        client.update_run(runs[0].info.run_id, status="RUNNING")
        return runs[0].info.run_id
    tags = {JOB_TAG: control.job_uid, "namespace": control.namespace}
    run = client.create_run(where, tags=tags, run_name=control.name).info.run_id
    for some in batched(_leaves("spec", read_by_task(control.spec)), MOST_PARAMETERS):
        client.log_batch(run, params=[Param(path, text) for path, text in some])
    return run


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """`spec.train.steps`, `spec.rewards.0.rule`, ..., each with its value as text."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None:
        yield FORBIDDEN.sub("_", path), str(value)
    else:
        for key, below in pairs:
            yield from _leaves(f"{path}.{key}", below)
