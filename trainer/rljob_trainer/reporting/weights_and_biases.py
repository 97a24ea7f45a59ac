"""Weights & Biases, where a job's environment names WANDB_PROJECT.

The client reads its settings from variables itself (WANDB_API_KEY, WANDB_ENTITY, WANDB_MODE, ...), so spec.env and spec.envFrom say all of them.
"""

import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from rljob_api.protocol import Control
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting.tracker import RunStatus, finish

PROJECT = "WANDB_PROJECT"
STEP = "step"
"""The axis of every curve. The client's own step only grows: what comes later of an earlier step, as the time of its save, would be dropped."""
REPORTS = "WANDB_ERROR_REPORTING"
"""Of the client's own errors, to others than the job's server: off where the job does not set it."""

log = logging.getLogger(__name__)


class WeightsAndBiases:
    """One run per job, which the client sends in a process of its own."""

    def __init__(self, run: Any):
        self._run = run
        run.define_metric("*", step_metric=STEP)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, STEP: step})

    def close(self, end: RunStatus) -> None:
        finish(partial(self._run.finish, int(end == "failed")), "Weights & Biases")


def connect(control: Control, environment: Mapping[str, str]) -> WeightsAndBiases | None:
    """None where it is not asked for, or does not answer: training does not wait for somebody else's service.

    Raises ConfigurationError where it cannot work.
    """
    project = environment.get(PROJECT)
    if not project:
        return None
    os.environ.setdefault(REPORTS, "false")
    import wandb

    try:
        return WeightsAndBiases(
            wandb.init(
                id=control.job_uid,
                name=control.name,
                group=control.namespace,
                resume="allow",
                dir=control.spec.checkpoint.path,
                config=control.spec.dump(),
                settings=wandb.Settings(console="off"),
            )
        )
    except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as refused:
        fix = "give WANDB_API_KEY, from a Secret in spec.envFrom, or WANDB_MODE=offline"
        raise ConfigurationError("spec.env", f"{PROJECT}={project}", f"wandb refuses: {refused}", fix) from refused
    except wandb.errors.Error as error:
        log.warning("Weights & Biases gets nothing of this attempt: %s", error)
        return None
