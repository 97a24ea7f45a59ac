"""Who fetches: a process that the launcher has forked, with progress for its reports, and `python -m rljob_trainer fetch`, by hand."""

import logging
import os
import sys
import threading
import time
from pathlib import Path

from pydantic import ValidationError

from rljob_api import names
from rljob_api.protocol import Control, Progress
from rljob_api.spec.common import Source
from rljob_trainer import failure
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources.fetch import fetch
from rljob_trainer.sources.record import read_record
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
    """For example `3.2 of 15.2 GB`, or `0.4 of 11.4 MB`."""
    size, unit = (1e9, "GB") if not total or total >= 1e8 else (1e6, "MB")
    return f"{there / size:.1f} of {total / size:.1f} {unit}" if total else f"{there / size:.1f} {unit}"


def fetch_here(address: str, directory: Path, patterns: list[str]) -> int:
    """The exit code: 0 when everything is there, 1 with the cause in one message."""
    try:
        source = Source(source=address, path=str(directory.resolve()), files=patterns)
        fetch("DIR", source, _print)
    except ValidationError:
        print(f"{address}: not the address of a source, for example hf://ORG/MODEL@REVISION", file=sys.stderr)
        return 1
    except (ConfigurationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    record = read_record(directory)
    assert record
    revision = f" at {record.revision}" if record.revision else ""
    count = len(record.files)
    print(f"{directory}: {count} file{'s' if count > 1 else ''} of {address}{revision}")
    return 0


def _print(there: int, total: int) -> None:
    """On a terminal: a log would get a line for each piece."""
    if not sys.stderr.isatty():
        return
    print(f"\r{amount(there, total)}", end="\n" if there == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
