"""The process that fetches a job's sources at the start of an attempt, alongside node rank 0: the launcher forks it, and waits for it."""

import logging
import os
import threading
import time
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control, Progress
from rljob_trainer import failure
from rljob_trainer.sources.fetch import fetch
from rljob_trainer.textfile import replace

WRITE_SECONDS = 0.5


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s fetch %(message)s", force=True)
    directory = Path(os.environ[names.ENV_ATTEMPT_DIR])
    control = Control.model_validate_json((directory / names.CONTROL_KEY).read_text())
    try:
        for field, source in control.spec.sources.items():
            fetch(field, source, Account(source.source, directory / "progress.json"))
    except BaseException as error:
        failure.write(directory, "fetch", error)
        raise


class Account:
    """How far a source has come, for the launcher's report."""

    def __init__(self, source: str, file: Path) -> None:
        self._source, self._file, self._written, self._lock = source, file, 0.0, threading.Lock()

    def __call__(self, there: int, total: int) -> None:
        """From any thread. The heartbeat is the bytes themselves."""
        with self._lock:
            if there < total and time.monotonic() - self._written < WRITE_SECONDS:
                return
            self._written = time.monotonic()
            text = f"{self._source}, {amount(there, total)}"
            replace(self._file, Progress(phase="fetching", heartbeat=there, fetching=text).dump_json())


def amount(there: int, total: int) -> str:
    """For example `3.2 of 15.2 GB`."""
    return f"{there / 1e9:.1f} of {total / 1e9:.1f} GB" if total else f"{there / 1e9:.1f} GB"


if __name__ == "__main__":
    main()
