"""Run many benchmarks on a GPU machine that is there for minutes only: those of a plan, several at a time.

    python -m benchmarks.queue [PLAN] [--logs DIR] [--scratch DIR]

PLAN (benchmarks/unmeasured.yaml) is a list of stages, one after another. A stage is a list of tracks, which run at the same time; a track names its
GPUs (CUDA_VISIBLE_DEVICES) and its runs, one after another: `NAME: {seconds: LIMIT, run: COMMAND}`. A command is one of a shell, at the root of the
repository, with LOGS, a directory for what it writes, and a TMPDIR of its own, which is deleted when it ends; models, which all runs share, are in
the scratch directory itself. All that it started is dead when the next one begins. What figures come from is in a stage alone; what only has to be
right shares the GPUs.

DIR/queue.log says what began and ended when, DIR/NAME.log what a run said. A line in DIR/skip names a run that is not to begin any more.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks import scratch
from benchmarks.reaper import LATE

REPOSITORY = Path(__file__).parents[1]
PLAN = Path(__file__).with_name("unmeasured.yaml")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.queue")
    parser.add_argument("plan", nargs="?", type=Path, default=PLAN)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    queue = Queue(options.logs.resolve(), options.scratch.resolve())
    for stage in yaml.safe_load(options.plan.read_text()):
        with ThreadPoolExecutor(len(stage)) as tracks:
            list(tracks.map(queue.work_off, stage))
    queue.say("all done")


@dataclass
class Queue:
    """Where runs write."""

    logs: Path
    scratch: Path
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)

    def work_off(self, track: dict[str, Any]) -> None:
        """The runs of a track; one that fails does not keep the next one from its turn."""
        for name, wanted in track["runs"].items():
            if name in self._skipped():
                self.say(f"{name}: skipped")
                continue
            self.say(f"{name}: begins on {track['gpus']}")
            began = time.monotonic()
            code = self._run(name, str(track["gpus"]), wanted["run"], wanted["seconds"])
            self.say(f"{name}: {code} after {time.monotonic() - began:.0f} s")

    def say(self, text: str) -> None:
        with (self.logs / "queue.log").open("a") as log:
            log.write(f"{time.monotonic() - self.began:7.1f} s  {text}\n")

    def _skipped(self) -> list[str]:
        file = self.logs / "skip"
        return file.read_text().split() if file.exists() else []

    def _run(self, name: str, gpus: str, command: str, seconds: float) -> str:
        own = self.scratch / name
        own.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus, "TMPDIR": str(own), "LOGS": str(self.logs)}
        environment |= {scratch.MODELS_VARIABLE: str(self.scratch)}
        limited = [sys.executable, "-m", "benchmarks.reaper", str(seconds), command]
        with (self.logs / f"{name}.log").open("w") as out:
            code = subprocess.run(limited, cwd=REPOSITORY, env=environment, stdout=out, stderr=out).returncode
        shutil.rmtree(own)
        return "not at its end" if code == LATE else f"exit {code}"


if __name__ == "__main__":
    main()
