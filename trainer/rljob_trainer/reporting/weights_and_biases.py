"""Weights & Biases, where a job's environment names WANDB_PROJECT and its image has the client.

The client reads its settings from variables itself (WANDB_API_KEY, WANDB_ENTITY, WANDB_MODE, ...), so spec.env and spec.envFrom say all of them.
"""

import importlib
import logging
import threading
from collections.abc import Mapping
from typing import Any

from rljob_api.protocol import Control
from rljob_trainer.failure import ConfigurationError

PROJECT = "WANDB_PROJECT"
STEP = "step"
"""The axis of every curve. The client's own step only grows: what comes later of an earlier step, as the time of its save, would be dropped."""
GOODBYE_SECONDS = 60.0
"""The client itself has no limit while its service is away. Nobody trains meanwhile, and a driver that failed has not said why."""

log = logging.getLogger(__name__)


class WeightsAndBiases:
    """One run per job, over all attempts. A step that is done again has a second point there."""

    def __init__(self, run: Any):
        self._run = run
        run.define_metric("*", step_metric=STEP)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Returns at once; the client sends on its own."""
        self._run.log({**metrics, STEP: step})

    def close(self) -> None:
        """Send what is left, as long as that takes no longer than GOODBYE_SECONDS: all of it is in metrics.jsonl as well."""
        rest = threading.Thread(target=self._run.finish, daemon=True)
        rest.start()
        rest.join(GOODBYE_SECONDS)
        if rest.is_alive():
            log.warning("Weights & Biases may lack the last points: not all were sent within %g s", GOODBYE_SECONDS)


def connect(control: Control, environment: Mapping[str, str]) -> WeightsAndBiases | None:
    """None where it is not asked for, or does not answer: training does not wait for somebody else's service.

    Raises ConfigurationError where it cannot work.
    """
    project = environment.get(PROJECT)
    if not project:
        return None
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError as missing:
        rule = f"the image has no client of Weights & Biases: {missing}"
        raise ConfigurationError(
            "spec.env", f"{PROJECT}={project}", rule, "install wandb in an image of yours, or take the variable out"
        ) from missing
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
