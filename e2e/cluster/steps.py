"""Running one long step of the set-up: into a log, with a sign of life on the terminal."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
REPOSITORY = HERE.parents[1]
CACHE = Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob")
KUBERNETES = os.environ.get("RLJOB_KUBERNETES") or "1.34"
"""Minor version of Kubernetes, one of components/kubernetes. What is compiled for another one lies apart, so that neither replaces the other."""
BIN = CACHE / f"bin-{KUBERNETES}"
STATE = CACHE / "cluster"
KUBECONFIG = STATE / "kubeconfig"
SIGN_OF_LIFE_SECONDS = 15
QUIET_SECONDS = 5.0


class StepFailed(RuntimeError):
    """A step's command failed; the message has its last lines and the path of its log."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def run_step(title: str, *command: str | Path, env: dict[str, str] | None = None, cwd: Path = HERE) -> None:
    """Run `command` with its output in a log under the cache, and say what it does if it takes longer than a moment."""
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
    code = _wait(process, title, log, start)
    if code != 0:
        raise StepFailed(f"{title} failed (exit {code}), see {log}:\n{last_lines(log, 15)}")
    if time.monotonic() - start > QUIET_SECONDS:
        say(f"{title}: done in {time.monotonic() - start:.0f} s")


def _wait(process: subprocess.Popen[bytes], title: str, log: Path, start: float) -> int:
    patience = QUIET_SECONDS
    while True:
        try:
            return process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            patience = SIGN_OF_LIFE_SECONDS
            say(f"{title}: {time.monotonic() - start:.0f} s  {last_lines(log, 1)[:90]}".rstrip())


def last_lines(log: Path, count: int) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-count:])
