"""A driver without data: it accounts for itself, and does what a file tells it."""

import os
import sys
import time
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control, Progress
from rljob_trainer.pod.channel import replace


def prepare() -> None: ...


def main() -> None:
    directory = Path(os.environ[names.ENV_ATTEMPT_DIR])
    control = Control.model_validate_json((directory / "control.json").read_text())
    root, beat = Path(control.spec.checkpoint.path), 0
    print("the driver has begun", flush=True)
    (root / f"pid-{control.attempt}-driver").write_text(str(os.getpid()))
    while not (root / f"finish-{control.attempt}").exists():
        control = Control.model_validate_json((directory / "control.json").read_text())
        if control.command == "drain":
            (root / f"drain-{control.attempt}").touch()
            break
        beat += 1
        replace(
            directory / "progress.json",
            Progress(heartbeat=beat, phase="training", step=control.attempt, steps=10, started_from=0).dump_json(),
        )
        if (root / "driver").exists():
            (root / "driver").unlink()
            sys.exit("the driver gives up")
        time.sleep(0.05)
