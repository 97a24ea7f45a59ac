"""An environment of RLJob in which the policy may run Python: what docs/environment.openapi.yaml asks for, by the standard library alone.

    python server.py [--port 8080] [--seconds 5] [--memory-mib 256] [--at-once 4] [--host 0.0.0.0]

The last block of ```python in a turn is run by limited.py, in a process of its own with limits. What it prints is what the policy reads next, as a
message of the role `tool`. A turn without a block ends the episode: its reward is 1 when its last line is the row's `answer`, else 0.

A program could send signals to whatever else runs as its user. In a container this is process 1, which the kernel keeps from signals that it does not
handle; so SIGTERM is not handled.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
LONGEST_OUTPUT = 4000
"""Bytes; what comes behind is left out, and the program ends."""
FORGOTTEN_SECONDS = 3600.0
"""A session without a step for so long was never closed."""
LIMITED = Path(__file__).with_name("limited.py")
Object = dict[str, Any]


class Refused(Exception):
    """A request that breaks the contract."""

    def __init__(self, status: HTTPStatus, reason: str):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Sandbox:
    """Runs programs, so many at a time."""

    seconds: int
    memory: int
    slots: threading.BoundedSemaphore

    def run(self, program: str) -> str:
        """What it prints, and what became of it if it did not end well."""
        command = [sys.executable, "-I", str(LIMITED), str(self.seconds), str(self.memory)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.slots, subprocess.Popen(command, **pipes, env={}, cwd="/", start_new_session=True) as process:
            late = threading.Timer(2 * self.seconds, process.kill)  # it may sleep, which takes no processor time
            late.start()
            threading.Thread(target=_give, args=(process, program.encode(errors="replace"))).start()
            printed = process.stdout.read(LONGEST_OUTPUT + 1)
            if len(printed) > LONGEST_OUTPUT:
                process.kill()
            process.wait()
            late.cancel()
        return printed[:LONGEST_OUTPUT].decode(errors="replace") + self._end(process.returncode, len(printed))

    def _end(self, code: int, printed: int) -> str:
        if printed > LONGEST_OUTPUT:
            return f"\n[only the first {LONGEST_OUTPUT} bytes]"
        if code < 0:
            return f"\n[ended by {_name(-code)}: the limit is {self.seconds} s]"
        return ""


def _name(number: int) -> str:
    """Real-time signals, which a program may send itself, have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _give(process: subprocess.Popen[bytes], program: bytes) -> None:
    try:
        process.stdin.write(program)
        process.stdin.close()
    except BrokenPipeError:
        return


@dataclass
class Episode:
    """Of one trajectory."""

    answer: str
    turns: int = 0
    runs: int = 0
    used: float = field(default_factory=time.monotonic)


class Environment:
    """All episodes. Every method answers one route."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox, self._episodes, self._lock = sandbox, dict[str, Episode](), threading.Lock()

    def reset(self, body: Object) -> Object:
        now = time.monotonic()
        with self._lock:
            self._episodes = {s: e for s, e in self._episodes.items() if now - e.used < FORGOTTEN_SECONDS}
            self._episodes[body["session"]] = Episode(str(body["row"].get("answer", "")))
        return {}

    def step(self, body: Object) -> Object:
        with self._lock:
            episode = self._episodes.get(body["session"])
            if episode is None:
                raise Refused(HTTPStatus.NOT_FOUND, "there is no such session")
            if body["turn"] != episode.turns:
                raise Refused(HTTPStatus.CONFLICT, f"the next turn is {episode.turns}")
            episode.turns, episode.used = episode.turns + 1, time.monotonic()
        blocks = BLOCK.findall(body["text"])
        if not blocks:
            lines = body["text"].strip().splitlines()
            right = bool(lines) and lines[-1].strip() == episode.answer.strip()
            return {"reward": float(right), "done": True, "metrics": {"runs": episode.runs}}
        episode.runs += 1
        printed = self._sandbox.run(blocks[-1])
        return {"messages": [{"role": "tool", "content": printed}], "metrics": {"runs": episode.runs}}

    def close(self, body: Object) -> Object:
        with self._lock:
            self._episodes.pop(body["session"], None)
        return {}


def handler(environment: Environment) -> type[BaseHTTPRequestHandler]:
    """What answers the requests of a connection."""
    routes: dict[str, Callable[[Object], Object]] = {
        "/reset": environment.reset,
        "/step": environment.step,
        "/close": environment.close,
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept open

        def do_POST(self) -> None:
            try:
                body = self._body()
                answer = self._route()(body)
            except Refused as refused:
                self._send(refused.status, {"error": str(refused)})
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                self._send(HTTPStatus.BAD_REQUEST, {"error": f"{type(error).__name__}: {error}"})
            else:
                self._send(HTTPStatus.OK, answer)

        def _route(self) -> Callable[[Object], Object]:
            if self.path not in routes:
                raise Refused(HTTPStatus.NOT_FOUND, f"the routes are {', '.join(routes)}")
            return routes[self.path]

        def _body(self) -> Object:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _send(self, status: HTTPStatus, answer: Object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Requests are not logged."""

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="An environment of RLJob in which the policy may run Python.")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080, help="0: one that is free")
    parser.add_argument(
        "--seconds", type=int, default=5, help="of processor time for one program; twice as much in all"
    )
    parser.add_argument("--memory-mib", type=int, default=256, help="for one program")
    parser.add_argument("--at-once", type=int, default=4, help="programs")
    options = parser.parse_args()
    slots = threading.BoundedSemaphore(options.at_once)
    environment = Environment(Sandbox(options.seconds, options.memory_mib * 2**20, slots))
    server = Server((options.host, options.port), handler(environment))
    print(f"serving on port {server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
