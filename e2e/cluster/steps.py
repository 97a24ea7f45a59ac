"""Running one long step of the set-up: into a log, with a sign of life on the terminal."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
REPOSITORY = HERE.parents[1]
CACHE = Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob")
KUBERNETES = os.environ.get("RLJOB_KUBERNETES") or "1.37"
"""Minor version of Kubernetes, one of components/kubernetes. What is compiled for another one lies apart, so that neither replaces the other."""
BIN = CACHE / f"bin-{KUBERNETES}"
STATE = CACHE / "cluster"
KUBECONFIG = STATE / "kubeconfig"
SIGN_OF_LIFE_SECONDS = 15
QUIET_SECONDS = 5.0


class StepFailed(RuntimeError):
    """A step's command failed; the message has its last lines and the path of its log."""


def last_line(log: str) -> str:
    return (log.strip().splitlines() or [""])[-1]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def run_step(
    title: str,
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: Path = HERE,
    progress: Callable[[str], str] = last_line,
) -> Path:
    """Run `command` with its output in a log under the cache, and say how far it is if it takes longer than a moment.

    `progress` makes one line of what the log has so far. Returns the log.
    """
    log = CACHE / "logs" / f"{title.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | {"RLJOB_BIN": str(BIN)} | (env or {}),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    code = _wait(process, lambda: f"{title}: {time.monotonic() - start:.0f} s, {progress(_read(log))[:110]}")
    if code != 0:
        lines = "\n".join(_read(log).strip().splitlines()[-15:])
        raise StepFailed(f"{title} failed (exit {code}), see {log}:\n{lines}")
    if time.monotonic() - start > QUIET_SECONDS:
        say(f"{title}: done in {time.monotonic() - start:.0f} s")
    return log


def _wait(process: subprocess.Popen[bytes], progress: Callable[[], str]) -> int:
    patience = QUIET_SECONDS
    while True:
        try:
            return process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            patience = SIGN_OF_LIFE_SECONDS
            say(progress().rstrip(", "))


def _read(log: Path) -> str:
    return log.read_text(errors="replace")
