"""Running one long step of the set-up: into a log, with a sign of life on the terminal."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CACHE = Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob")
BIN = CACHE / "bin"
STATE = CACHE / "cluster"
SIGN_OF_LIFE_SECONDS = 15


class StepFailed(Exception):
    """A step's command failed; the message has its last lines and the path of its log."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run_step(title: str, command: list[str | Path], *, env: dict[str, str] | None = None, cwd: Path = HERE) -> None:
    """Run `command` with its output in a log under the cache, and say how long it takes while it does."""
    log = CACHE / "logs" / f"{title.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    say(f"{title} ...")
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | (env or {}), stdout=output, stderr=subprocess.STDOUT
        )
    while True:
        try:
            code = process.wait(timeout=SIGN_OF_LIFE_SECONDS)
            break
        except subprocess.TimeoutExpired:
            say(f"{title}: {time.monotonic() - start:.0f} s: {last_lines(log, 1)[:100]}")
    if code != 0:
        raise StepFailed(f"{title} failed (exit {code}), see {log}:\n{last_lines(log, 15)}")
    say(f"{title}: done in {time.monotonic() - start:.0f} s")


def last_lines(log: Path, count: int) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-count:])
