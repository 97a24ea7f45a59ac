"""SwanLab, where a job's environment names SWANLAB_PROJ_NAME.

The client reads its settings from variables itself (SWANLAB_API_KEY, SWANLAB_MODE, SWANLAB_WORKSPACE, ...), so spec.env and spec.envFrom say all of
them. It is in none of the images: it needs an older protobuf than their lock has.
"""

import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from rljob_api.protocol import Control
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.reporting.tracker import RunStatus, finish

PROJECT = "SWANLAB_PROJ_NAME"
DEFAULTS = {"SWANLAB_INTERACTIVE": "false", "SWANLAB_TERMINAL_PROXY_TYPE": "none"}
"""Nobody answers a prompt for a key; and the driver's output is in its log."""
STATES: dict[RunStatus, str] = {"succeeded": "success", "drained": "aborted", "failed": "crashed"}
"""Of a run while no attempt writes to it."""

log = logging.getLogger(__name__)


class SwanLab:
    """One run per job, which the client's threads send."""

    def __init__(self, run: Any):
        self._run = run

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, end: RunStatus) -> None:
        error = {"error": "the attempt failed"} if end == "failed" else {}
        finish(partial(self._run.finish, state=STATES[end], **error), "SwanLab")


def connect(control: Control, environment: Mapping[str, str]) -> SwanLab | None:
    """None where it is not asked for, or does not let us in: the client does not say whether its service refuses or is away.

    Raises ConfigurationError where it cannot work.
    """
    project = environment.get(PROJECT)
    if not project:
        return None
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import swanlab
    except ImportError as error:
        fix = "add it to the trainer's image (pip install swanlab), or remove the variable"
        raise _refused(project, f"the client cannot be imported: {error}", fix) from error
    try:
        return SwanLab(
            swanlab.init(
                project=project,
                id=control.job_uid,
                name=control.name,
                group=control.namespace,
                resume="allow",
                log_dir=f"{control.spec.checkpoint.path}/swanlog",
                config=control.spec.dump(),
            )
        )
    except (RuntimeError, ValueError) as error:  # no key; a variable that it cannot read
        fix = "give SWANLAB_API_KEY, from a Secret in spec.envFrom, or SWANLAB_MODE=offline"
        raise _refused(project, f"swanlab refuses: {error}", fix) from error
    except swanlab.exceptions.AuthenticationError as error:
        log.warning("SwanLab gets nothing of this attempt: its service is away, or refuses SWANLAB_API_KEY: %s", error)
        return None


def _refused(project: str, rule: str, fix: str) -> ConfigurationError:
    return ConfigurationError("spec.env", f"{PROJECT}={project}", rule, fix)
