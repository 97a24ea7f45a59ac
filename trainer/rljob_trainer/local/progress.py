"""What a run on one machine says: where it is, how long it will take, what it waits for, and what it leaves behind. Pure, but for the screen, and for
metrics.jsonl, which has what is measured on held-out data while the run continues.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rljob_api.metrics import EVALUATION_METRICS
from rljob_api.protocol import Command, Failure, Progress, Report
from rljob_trainer.local.decide import LocalState, Seen

STEADY = ("evaluating", "generating", "scoring", "training", "syncing", "saving")
"""Phases that alternate within a step; a line for each would be noise."""
WAITS = {
    "loading": "loading the model into the trainer",
    "waiting": "waiting for vLLM to load the model and receive the weights",
}
"""What takes long before the first step, by phase."""
ORDERED: Mapping[Command, Sequence[str]] = {"run": (), "drain": ("draining",), "stop": ("stopping",)}
REPEAT_SECONDS = 30.0
"""Between two lines of a log about the same wait."""
BAR = 10
"""Characters."""


def status_line(state: LocalState, seen: Seen) -> str:
    """For example `step 12/100, 5 min left, reward 0.438, held-out reward 0.412, loss 0.0012, 3.4 s; trainers 2/2, rollouts 2/2`. What matters most
    comes first: a terminal may be narrow. An attempt is named when it is not the run's first one."""
    trainers = sum(_runs(report, state) for report in seen.trainers.values())
    counts = f"trainers {trainers}/{len(seen.trainers)}"
    for role, launchers in seen.gangs.items():
        counts += f", {role} {sum(_runs(report, state) for report in launchers.values())}/{len(launchers)}"
    serving = {"rollouts": seen.rollouts} | dict(seen.pools)
    counts += "".join(f", {name} {_ready(servers)}" for name, servers in serving.items() if servers)
    if state.attempt == 0:
        return f"starting; {counts}"
    attempt = [f"attempt {state.attempt}"] if state.failures else []
    before = ", ".join([*attempt, *ORDERED[state.command]])
    return f"{before}{': ' if before else ''}{_progress(running(state, seen))}; {counts}"


def restarted(before: LocalState, now: LocalState, most: int) -> str:
    """Why an attempt failed, when the next one begins. `most`: restarts that the job may have."""
    count = f"restart {now.failures} of at most {most}"
    return f"attempt {now.attempt} begins ({count}), since attempt {before.attempt} failed: {now.failed}"


def running(state: LocalState, seen: Seen) -> Progress | None:
    """Progress of the attempt that runs."""
    return next((r.progress for r in seen.trainers.values() if r and _runs(r, state) and r.progress), None)


def warnings(seen: Seen) -> list[str]:
    """What the trainer warns of."""
    return next((r.progress.warnings for r in seen.trainers.values() if r and r.progress), [])


def failures(seen: Seen) -> dict[str, Failure]:
    """Why servers ended that are not ready again, by pod. A mistake in their arguments ends the job."""
    return {
        pod: report.failure
        for pod, report in seen.servers.items()
        if report and report.failure and report.failure.kind != "configuration"
    }


def _ready(servers: Mapping[str, Report | None]) -> str:
    return f"{sum(report is not None and report.state == 'running' for report in servers.values())}/{len(servers)}"


def summary(seen: Seen, evaluated: Path | None = None) -> str:
    """What a job that has succeeded leaves behind, one fact a line. `evaluated`: the metrics of one that only evaluates."""
    progress = next((r.progress for r in seen.trainers.values() if r and r.progress), None)
    if progress is None:
        return "nothing reported"
    if evaluated:
        return f"step {progress.step} was evaluated, nothing was trained\nall metrics: {evaluated}"
    done = progress.steps and progress.started_from is not None and progress.started_from >= progress.steps
    facts = [f"{progress.step} steps" + (", all of an earlier run: nothing was trained" if done else "")]
    if progress.evaluation:
        values = ", ".join(f"{name} {value:.3f}" for name, value in progress.evaluation.items())
        facts.append(f"held-out {_score(progress)}: {values}")
    facts += [f"checkpoint: {checkpoint.path}" for checkpoint in progress.checkpoints[-1:]]
    if progress.export:
        facts.append(f"Hugging Face model: {progress.export}")
    facts += [f"warning: {text}" for text in progress.warnings]
    return "\n".join(facts)


def _runs(report: Report | None, state: LocalState) -> bool:
    return report is not None and report.attempt == state.attempt and report.state == "running"


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return "starting"
    if progress.phase == "fetching":
        return f"fetching {progress.fetching}"
    if progress.started_from is None:
        return WAITS.get(progress.phase, progress.phase)
    parts = [f"step {progress.step}/{progress.steps}", *_measured(progress)]
    if progress.phase not in STEADY:
        loading = (
            f"loading {', '.join(progress.loading)}" if progress.loading else WAITS.get(progress.phase, progress.phase)
        )
        parts.append(progress.awaiting or loading)
    return ", ".join(parts)


def _measured(progress: Progress) -> Iterator[str]:
    seconds = left(progress)
    if seconds is not None:
        yield f"{duration(seconds)} left"
    last = progress.history[-1] if progress.history else None
    if last and last.reward is not None:
        yield f"reward {last.reward:.3f}"
    held_out = progress.evaluation.get("last")
    if held_out is not None:
        yield f"held-out {_score(progress)} {held_out:.3f}"
    if last:
        yield f"loss {last.loss:.4f}"
        yield f"{last.seconds:.1f} s"


def _score(progress: Progress) -> str:
    """What is measured on held-out data."""
    return "loss" if any(point.reward is None for point in progress.history) else "reward"


def left(progress: Progress) -> float | None:
    """Seconds until the last step, at the pace of the last ones; None: nobody knows yet."""
    rest = progress.steps - progress.step
    return rest * progress.pace if progress.pace is not None and rest > 0 else None


def duration(seconds: float) -> str:
    """For example `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def continued(seen: Seen, command: str) -> str:
    """What an interrupted run has saved, and how it goes on."""
    progress = next((r.progress for r in seen.trainers.values() if r and r.progress), None)
    if progress is None or not progress.checkpoints:
        return f"nothing is saved yet; to begin again: {command}"
    saved = progress.checkpoints[-1]
    return f"step {saved.step} is saved in {saved.path}; to continue: {command}"


@dataclass(frozen=True, slots=True)
class Wait:
    """For something before the first step."""

    seconds: float
    expected: float | None
    """What it took here the last time; None: nobody knows."""


@dataclass
class Display:
    """One line that is kept up to date on a terminal; lines with the time in a log."""

    stream: TextIO
    _line: str = ""
    _since: float = 0.0
    _said: float | None = None

    def show(self, line: str, done: float | None, now: float, wait: Wait | None = None) -> None:
        """`done`: the part of the run that is done, for a bar; None: it has not begun, and the line says for how long. `now`: a monotonic time.
        `wait`: what goes on, perhaps under changing lines."""
        if line != self._line:
            self._line, self._since, self._said = line, now, None
        spent = wait.seconds if wait else now - self._since
        about = f"; last time {duration(wait.expected)}" if wait and wait.expected else ""
        waited = "" if done is not None or spent < 1 else f" ({duration(spent)}{about})"
        if self.stream.isatty():
            bar = "" if done is None else f"[{'#' * int(BAR * done):<{BAR}}] "
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r\x1b[K{(bar + line + waited)[:width]}")
            self.stream.flush()
        elif self._said is None or (waited and now - self._said >= REPEAT_SECONDS):
            self._said = now
            self._print(line + waited)

    def say(self, text: str) -> None:
        """A line of its own, which stays."""
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
        self._print(text)

    def end(self) -> None:
        """Leave the last line where it is."""
        if self.stream.isatty() and self._line:
            self.stream.write("\n")

    def _print(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self.stream, flush=True)


MEASURED = {"evaluation/reward": "held-out reward", "evaluation/loss": "held-out loss"}


class Evaluations:
    """Those that are written from now on."""

    def __init__(self, file: Path):
        self._file, self._read = file, _size(file)

    def new(self) -> Iterator[str]:
        """A line for each since the last call. What an attempt has dropped, because it does those steps again, was said before."""
        size = _size(self._file)
        if size < self._read:
            self._read = size
        if size == self._read:
            return
        with self._file.open("rb") as source:
            source.seek(self._read)
            whole, newline, _ = source.read(size - self._read).rpartition(b"\n")
        self._read += len(whole + newline)
        for line in whole.splitlines():
            yield from _said(line)


def _said(line: bytes) -> Iterator[str]:
    try:
        record = json.loads(line)
    except ValueError:  # an attempt has written the file anew in between
        return
    parts = [f"{text} {record[name]:.3f}" for name, text in MEASURED.items() if name in record]
    if parts:
        yield f"step {record['step']}: {', '.join([*parts, *_own(record)])}"


def _own(record: Mapping[str, float]) -> list[str]:
    """Metrics of the job's own reward functions."""
    return [
        f"{name.removeprefix(EVALUATION_METRICS)} {value:.3f}"
        for name, value in record.items()
        if name.startswith(EVALUATION_METRICS)
    ]


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
