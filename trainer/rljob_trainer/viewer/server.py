"""The page, and its server: GET only, from loopback by a name of loopback only, so that no other site's page reaches it through the browser."""

import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rljob_trainer.viewer.runs import RunFiles, UnreadableRun

HOST = "127.0.0.1"
PAGE = Path(__file__).parent / "page"
UTF_8 = "; charset=utf-8"
KINDS = {".html": f"text/html{UTF_8}", ".js": f"text/javascript{UTF_8}", ".css": f"text/css{UTF_8}"}
FILES = {f"/{file.name}": file for file in sorted(PAGE.iterdir()) if file.suffix in KINDS}
LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:[0-9]{1,5})?")
ASKED = re.compile(
    r"/api/runs(?:/([0-9]{1,4})/(?:metrics|spans/(?P<spans>[0-9]{1,12})|samples/(?P<samples>[0-9]{1,12})(?:/images/(?P<image>[0-9]{1,4}))?))?"
)
POLICY = "; ".join(
    f"{name} {value}"
    for name, value in {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
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


def view(directories: Sequence[Path], port: int) -> int:
    """Serve the runs until interrupted. The exit code: 1 when there is nothing to show, or the port is taken."""
    wrong = list(filter(None, map(_problem, directories)))
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
            self._answer(asked[1], asked)
        else:
            self._error(HTTPStatus.NOT_FOUND, "there is no such page")

    def _answer(self, run: str | None, asked: re.Match[str]) -> None:
        if run is None:
            self._json(HTTPStatus.OK, [one.described() for one in self._runs])
        elif int(run) >= len(self._runs):
            self._error(HTTPStatus.NOT_FOUND, f"there is no run {run}")
        else:
            try:
                self._show(self._runs[int(run)], asked)
            except UnreadableRun as error:
                self._error(HTTPStatus.NOT_FOUND, str(error))

    def _show(self, run: RunFiles, asked: re.Match[str]) -> None:
        """Raises UnreadableRun."""
        match asked.groupdict():
            case {"image": str(number), "samples": str(step)}:
                self._send(HTTPStatus.OK, "image/png", run.image(int(step), int(number)))
            case {"samples": str(step)}:
                self._json(HTTPStatus.OK, run.samples(int(step)))
            case {"spans": str(step)}:
                self._json(HTTPStatus.OK, run.spans(int(step)))
            case _:
                self._json(HTTPStatus.OK, run.metrics())

    def _error(self, status: HTTPStatus, text: str) -> None:
        self._json(status, {"error": text})

    def _json(self, status: HTTPStatus, value: object) -> None:
        self._send(status, f"application/json{UTF_8}", json.dumps(value).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {
            **HEADERS,
            "Content-Type": kind,
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing: a terminal shows where the page is."""
