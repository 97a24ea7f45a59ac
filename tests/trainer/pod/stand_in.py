"""What the supervisor sees of a server, without vLLM: `python -m trainer.pod.stand_in <arguments>`.

`--max-num-seqs` steers it: 1 ends at once like argparse does on a wrong argument, 2 ends with 0 once it has answered and
leaves a child behind that holds its output open, as vLLM's engine does. The others have a process that is called as vLLM's engine: 5 serves;
6 never answers, as a server that hangs while it loads a model; the engine of 7 fails to start and says why, and the server stays; 8 and 9 load for
LOADING_SECONDS, of which 8 shows in what its engine reads and 9 in what it writes. 10 and 11 are in an update that waits for the trainer from their
first answer on; 11 is frozen as a whole by its first answer. 13 is a part that waits for another pod for LOADING_SECONDS, and shows it in nothing.
Its answers say the highest attempt it has seen.

With `--headless` it is a part of a server that has a head elsewhere; a head listens where they meet, as long as its engine lives. With 12 a worker of
such a part fails to start.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from setproctitle import setproctitle

from rljob_api import names
from rljob_trainer.server import readiness
from rljob_trainer.wire.weights.protocol import ATTEMPT_HEADER, FOLLOWER_FAILED, FOLLOWS, HEALTH, SLEEP

LOADING_SECONDS = 10
ERROR = "(EngineCore pid={pid}) ERROR 11-22 06:56:15 [core.py:1330] "
FAILURE = """EngineCore failed to start.
Traceback (most recent call last):
  File "core.py", line 1299, in run_engine_core
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


FOLLOWER = "--headless" in sys.argv
HEAD = bool(option("--master-port")) and not FOLLOWER
BEHAVIOUR = option("--max-num-seqs")
started = time.monotonic()
highest = int(os.environ.get(names.ENV_ATTEMPT, "0"))
answered = threading.Event()


class Answers(BaseHTTPRequestHandler):
    """The routes that the supervisor asks for. The standard library's server is imported in a tenth of the time of aiohttp."""

    def do_GET(self) -> None:
        known = {"/rljob/state": self._state, HEALTH: self._health}
        self._answer(200, known[self.path]())

    def do_POST(self) -> None:
        """As vLLM's API server, which lives on when its engine is dead."""
        assert self.path == SLEEP
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        dead = all(p.status() == psutil.STATUS_ZOMBIE for p in psutil.Process().children())
        self._answer(500 if dead else 200, {"error": "EngineDeadError"} if dead else {})

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _state(self) -> dict[str, Any]:
        global highest
        highest = max(highest, int(self.headers[ATTEMPT_HEADER]))
        answered.set()
        if BEHAVIOUR == "11":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        return {"attempt": highest}

    def _health(self) -> dict[str, Any]:
        if BEHAVIOUR == "10":
            return {"silence": time.monotonic() - started, "updating": True}
        return {"silence": 0.0, "updating": False}

    def _answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def fork_engine(behaviour: str) -> None:
    """What the server leaves alone once it is there."""
    if os.fork() == 0:
        setproctitle("VLLM::EngineCore")
        time.sleep(LOADING_SECONDS if behaviour == "13" else 0)
        meets = [socket.create_server(("127.0.0.1", int(option("--master-port"))))] if HEAD else []  # noqa: F841 kept open
        if behaviour == "7":
            time.sleep(1)  # it has served by then
            print("\n".join(ERROR.format(pid=os.getpid()) + line for line in FAILURE.splitlines()), flush=True)
            os._exit(1)
        if behaviour in ("8", "9"):
            load(behaviour)
        while behaviour == "10":
            time.sleep(0.1)
        time.sleep(3600)


def meet(port: int) -> None:
    """Returns once the head listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.05)


def load(behaviour: str) -> None:
    """As an engine does, for a while."""
    for _ in range(10 * LOADING_SECONDS):
        if behaviour == "8":
            with Path("/dev/zero").open("rb") as weights:
                weights.read(2**20)
        if behaviour == "9":
            print("Loading safetensors checkpoint shards", flush=True)
        time.sleep(0.1)


def leave() -> None:
    """Once it has answered."""
    answered.wait()
    time.sleep(0.5)  # the answer goes out
    os._exit(0)


def main(port: int, behaviour: str) -> None:
    print("started with", sys.argv[1:3], "by attempt", highest, flush=True)
    server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
    if behaviour == "2":
        subprocess.Popen(["sleep", "3600"])
        threading.Thread(target=leave).start()
    server.serve_forever()


if __name__ == "__main__":
    if option("--max-num-seqs") == "1":
        print("error: argument --max-num-seqs: 1 is not enough", flush=True)
        sys.exit(2)
    if BEHAVIOUR in ("5", "6", "7", "8", "9", "10", "11", "13"):
        fork_engine(BEHAVIOUR)
        if FOLLOWER:
            meet(int(option("--master-port")))
            readiness.answer(option("--host"), int(option("--port")), ("127.0.0.1", int(option("--master-port"))))
            print(FOLLOWS, flush=True)
            time.sleep(3600)
        time.sleep(
            {"5": 0, "6": 3600, "7": 3600, "8": LOADING_SECONDS, "9": LOADING_SECONDS, "13": LOADING_SECONDS}.get(
                BEHAVIOUR, 0
            )
        )
    if FOLLOWER and BEHAVIOUR == "12":
        prefix = "(Worker_TP1 pid=7) ERROR 11-26 06:56:15 [multiproc_executor.py:1330] "
        lines = FAILURE.replace("EngineCore failed", "WorkerProc failed").splitlines()
        print("\n".join(prefix + line for line in lines), flush=True)
        print(
            f"{FOLLOWER_FAILED}\nTraceback (most recent call last):\n  File\nException: WorkerProc initialization failed"
        )
        sys.exit(1)
    main(int(option("--port")), BEHAVIOUR)
