"""`python -m rljob_operator`: serves RLJobs until a signal ends it."""

import argparse
import asyncio
import gc
import json
import logging
import socket
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_api.text import one_line, plain
from rljob_api.type_errors import first_problem
from rljob_operator.operator import Options, operate

GC_THRESHOLDS = (20_000, 20, 100)
"""For gc.set_threshold. With Python's defaults, two thirds of the time in which events are parsed go into walking the whole cache for garbage."""


class PlainFormatter(logging.Formatter):
    """Writes each message on one line, without control characters: pods and users write parts of some messages."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


class JsonFormatter(logging.Formatter):
    """Writes each message as a JSON object on one line, with the keys that log collectors look for."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": time, "level": record.levelname, "logger": record.name, "message": plain(record.getMessage())}
        if record.exc_info:
            entry["exception"] = plain(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


FORMATTERS: dict[str, logging.Formatter] = {
    "text": PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonFormatter(),
}


def read_job_policy(file: str) -> JobPolicy:
    """The administrator's policy, from a JSON file. Raises ArgumentTypeError."""
    try:
        return JobPolicy.model_validate_json(Path(file).read_text())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {file}: {error.strerror}") from error
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{file}: jobs.{first_problem(error)}") from error


def parse_options() -> Options:
    parser = argparse.ArgumentParser(prog="rljob_operator", description=__doc__)
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        dest="namespaces",
        help="serve this namespace only; may be repeated; default: all",
    )
    parser.add_argument("--lease-namespace", default="default", help="namespace of the operator's own lease")
    parser.add_argument("--identity", default=socket.gethostname(), help="holder of the lease; the pod's name")
    parser.add_argument(
        "--progress-interval", type=float, default=30.0, help="seconds between writes of progress to a job's status"
    )
    parser.add_argument(
        "--network-policies",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="create a NetworkPolicy for each job; existing ones stay until their jobs are deleted",
    )
    parser.add_argument(
        "--job-policy",
        type=read_job_policy,
        default=DEFAULT_POLICY,
        metavar="FILE",
        help="JSON file with defaults for jobs, and limits of what they may set",
    )
    parser.add_argument("--qps", type=float, default=300.0, help="requests per second to the API server, on average")
    parser.add_argument("--burst", type=int, default=600, help="requests to the API server that may be made at once")
    parser.add_argument("--health-port", type=int, default=8080, help="port of /healthz")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    parser.add_argument("--log-format", default="text", choices=list(FORMATTERS), help="lines of text, or JSON objects")
    given = vars(parser.parse_args())
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[given.pop("log_format")])
    logging.basicConfig(level=given.pop("log_level"), handlers=[handler])
    return Options(**given)


def main() -> None:
    options = parse_options()
    gc.set_threshold(*GC_THRESHOLDS)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it logs a line for each event
    asyncio.run(operate(options))


if __name__ == "__main__":
    main()
