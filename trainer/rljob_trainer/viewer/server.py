"""The page, and its server: GET only, from loopback by a name of loopback only, so that no other site's page reaches it through the browser.

It shows what is in run directories, as JSON. Jobs write the files, and may write anything: sizes are bounded, and texts stay texts.
"""

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

from rljob_api import names

MOST_BYTES = 128 << 20
"""Of a file that is read."""
MOST_POINTS = 2000
"""Steps of a curve; of longer runs every n-th, and the last."""
DECODER = json.JSONDecoder(
    parse_float=lambda text: float(text) if math.isfinite(float(text)) else None,
    parse_int=lambda text: int(text) if math.isfinite(float(text)) else None,
    parse_constant=lambda text: None,
)
"""A number that is none of JSON, or beyond the browser's, is null."""
MOST_NAMED = 3
"""Other directories that are named."""
SAMPLES = re.compile(r"step_([0-9]{1,12})\.jsonl")
HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
FILES = {f"/{file.name}": file for file in sorted(PAGE.iterdir()) if file.suffix in KINDS}
LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
ASKED = re.compile(r"/api/runs(?:/([0-9]{1,4})/(?:(metrics)|samples/([0-9]{1,12})))?")
POLICY = "; ".join(
    f"{name} {value}"
    for name, value in {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }.items()
)
"""What the browser lets the page do: its own modules and style, its own requests, and no markup from a text."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class UnreadableRun(Exception):
    """Says why there is nothing to show."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A directory `spec.checkpoint.path`."""

    root: Path

    @property
    def begun(self) -> bool:
        """Whether a job has written here; one that still loads its model has no metrics."""
        return names.metrics_file(self.root).exists() or names.fence_dir(self.root).is_dir()

    def below(self) -> list[Path]:
        """Directories in this one that hold runs, a few of them."""
        return sorted(
            islice((file.parent for file in self.root.glob(f"*/{names.metrics_file(Path()).name}")), MOST_NAMED)
        )

    def described(self) -> dict[str, Any]:
        """Its name, and the steps that have samples, the newest last."""
        return {"name": self.root.name or str(self.root), "path": str(self.root), "samples": self._sampled()}

    def metrics(self) -> dict[str, Any]:
        """`steps`, and for each name the values at these steps; null where there is none. Raises Unreadable."""
        steps: dict[int, dict[str, float]] = {}
        for record in _records(names.metrics_file(self.root)):
            step = record.get("step")
            if isinstance(step, int) and not isinstance(step, bool):
                steps.setdefault(step, {}).update({k: v for k, v in record.items() if k != "step" and _number(v)})
        chosen = _thinned(sorted(steps))
        known = sorted({name for step in chosen for name in steps[step]})
        return {"steps": chosen, "values": {name: [steps[step].get(name) for step in chosen] for name in known}}

    def samples(self, step: int) -> list[Mapping[str, Any]]:
        """Of a step, as docs/data-formats.md says. Raises Unreadable."""
        return list(_records(names.samples_file(self.root, step)))

    def _sampled(self) -> list[int]:
        directory = names.samples_file(self.root, 0).parent
        matches = (SAMPLES.fullmatch(file.name) for file in directory.glob("step_*.jsonl"))
        return sorted(int(match[1]) for match in matches if match)


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """Lines that hold an object; what a killed process wrote half is none."""
    try:
        lines = _text(file).split("\n")  # texts may hold what Unicode calls line ends
    except OSError as error:
        raise UnreadableRun(f"{file.name} cannot be read: {error.strerror or error}") from error
    for line in lines:
        try:
            record = DECODER.decode(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def _text(file: Path) -> str:
    """Does not wait for the writer of a pipe. Raises OSError or Unreadable."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableRun(f"{file.name} is no regular file")
        if status.st_size > MOST_BYTES:
            raise UnreadableRun(f"{file.name} has {status.st_size} bytes, and at most {MOST_BYTES} are read")
        return source.read(MOST_BYTES).decode(errors="replace")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _thinned(steps: list[int]) -> list[int]:
    apart = -(-len(steps) // MOST_POINTS) or 1
    return sorted({*steps[::apart], *steps[-1:]})


def view(directories: Sequence[Path], port: int) -> int:
    """Serve the runs until interrupted. The exit code: 1 when there is nothing to show, or the port is taken."""
    wrong = [problem for directory in directories if (problem := _problem(directory))]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    try:
        server = serving([RunFiles(directory.resolve()) for directory in directories], port)
    except OSError as error:
        print(f"port {port} cannot be used: {error.strerror}; name another one with --port", file=sys.stderr)
        return 1
    with server:
        print(f"http://{HOST}:{server.server_port}/ until you press Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _problem(directory: Path) -> str:
    """Why there is nothing to show; empty: there is something."""
    if not directory.is_dir():
        return f"{directory}: there is no such directory; name spec.checkpoint.path of a run"
    run = RunFiles(directory)
    if run.begun:
        return ""
    meant = " or ".join(map(str, run.below()))
    fix = f"did you mean {meant}?" if meant else "name spec.checkpoint.path of a run"
    return f"{directory} is no run's directory: it holds no metrics.jsonl; {fix}"


def serving(runs: Sequence[RunFiles], port: int) -> ThreadingHTTPServer:
    """`port`: 0 for a free one. Raises OSError."""
    server = ThreadingHTTPServer((HOST, port), partial(_Handler, runs))
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    timeout = 30.0
    server_version = "rljob"
    sys_version = ""

    def __init__(self, runs: Sequence[RunFiles], *arguments: Any):
        self._runs = runs
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not LOCAL.fullmatch(self.headers.get("Host", "")):
            self._error(HTTPStatus.FORBIDDEN, "this server answers to localhost only")
        elif file := FILES.get("/index.html" if path == "/" else path):
            self._send(HTTPStatus.OK, KINDS[file.suffix], file.read_bytes())
        elif asked := ASKED.fullmatch(path):
            self._answer(*asked.groups())
        else:
            self._error(HTTPStatus.NOT_FOUND, "there is no such page")

    def _answer(self, run: str | None, metrics: str | None, step: str | None) -> None:
        if run is None:
            self._json(HTTPStatus.OK, [one.described() for one in self._runs])
        elif int(run) >= len(self._runs):
            self._error(HTTPStatus.NOT_FOUND, f"there is no run {run}")
        else:
            try:
                one = self._runs[int(run)]
                self._json(HTTPStatus.OK, one.metrics() if metrics else one.samples(int(step or 0)))
            except UnreadableRun as error:
                self._error(HTTPStatus.NOT_FOUND, str(error))

    def _error(self, status: HTTPStatus, text: str) -> None:
        self._json(status, {"error": text})

    def _json(self, status: HTTPStatus, value: object) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            **HEADERS,
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing: a terminal shows where the page is."""
