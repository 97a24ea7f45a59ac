"""`python -m rljob_trainer fetch`: the same copying, by hand."""

import sys
from pathlib import Path

from pydantic import ValidationError

from rljob_api.spec.common import Source
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources.fetch import fetch
from rljob_trainer.sources.process import amount
from rljob_trainer.sources.record import read_record


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
    print(f"{directory}: {len(record.files)} files of {address}{revision}")
    return 0


def _print(there: int, total: int) -> None:
    print(f"\r{amount(there, total)}", end="\n" if there == total else "", file=sys.stderr, flush=True)
