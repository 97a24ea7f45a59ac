"""A job on this machine by the product's own command, as far as its first so many steps: for benchmarks of whole steps."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.memory import Sample, Watch
from rljob_trainer.machine import VISIBLE, gpus

PRODUCT = ("-m", "rljob_trainer")
GOODBYE_SECONDS = 60.0
POLL_SECONDS = 0.2
SPLIT = ("time/step", "time/generate", "time/train", "time/sync", "time/save", "perf/tokens_per_s")
NAMED = {
    "time/step": "seconds",
    "rollout/tokens_per_s": "response_tokens_per_s",
    "response_length/mean": "response_length",
}
"""Columns of metrics whose last word says too little."""
AGREEMENT = ("train_rollout/log_prob_diff_mean", "train_rollout/log_prob_diff_max")


def shared_gpu(share: float, cache_gib: int) -> dict[str, Any]:
    """Arguments of a server on a GPU that other jobs use, too. With a cache of a given size vLLM measures nothing, which would fail where another
    job gives memory back meanwhile."""
    return {"gpu-memory-utilization": share, "kv-cache-memory-bytes": cache_gib * 2**30}


@dataclass
class Ended:
    """What became of a job."""

    code: int
    """Of the command; 0 when it did the steps that were asked for and was stopped then."""
    seconds: float
    said: str
    """The end of its output."""
    rows: dict[int, dict[str, float]]
    """Metrics by step."""
    samples: list[Sample] = field(default_factory=list)


def document(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {"image": "none"} | spec,
    }


def start(
    directory: Path, name: str, spec: dict[str, Any], gpu: int | None = None, product: Sequence[str] = PRODUCT
) -> subprocess.Popen[str]:
    """`directory`/NAME.yaml from step 0; its output is `directory`/NAME.out. `gpu`: see `one_gpu`; None: all of this process's."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(spec["checkpoint"]["path"], ignore_errors=True)
    manifest = directory / f"{name}.yaml"
    manifest.write_text(yaml.safe_dump(document(name, spec)))
    command = [sys.executable, *product, "run", str(manifest), "--work", str(directory / f"logs-{name}")]
    environment = os.environ | ({} if gpu is None else one_gpu(gpu))
    with (directory / f"{name}.out").open("w") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)


def one_gpu(number: int) -> dict[str, str]:
    """An environment with one of the GPUs that this process may use, counted from 0: other runs of a queue have the others of the machine. None
    where there is no GPU."""
    allowed = gpus()
    return {VISIBLE: allowed[number] if allowed else ""}


def run(
    directory: Path, name: str, spec: dict[str, Any], steps: int, limit: float, product: Sequence[str] = PRODUCT
) -> Ended:
    """Until `steps` steps are complete, or `limit` seconds are over. `spec` has one step more, so that the last checkpoint is not waited for."""
    log = Path(spec["checkpoint"]["path"]) / "metrics.jsonl"
    began, process = time.monotonic(), start(directory, name, spec, product=product)
    with Watch(process.pid, lambda: steps_of(log)) as watch:
        while process.poll() is None and time.monotonic() - began < limit and not complete(rows_of(log), steps):
            time.sleep(POLL_SECONDS)
    rows = rows_of(log)
    code = stop(process)
    said = (directory / f"{name}.out").read_text().strip().splitlines()
    code = 0 if complete(rows, steps) else code or 1
    if code:
        print("\n".join([f"{name} failed", *said[-15:], *tails(directory / f"logs-{name}", log.parent)]), flush=True)
    return Ended(code, round(time.monotonic() - began, 1), " ".join(said[-3:])[:1500], rows, watch.samples)


def stop(process: subprocess.Popen[str]) -> int:
    """Without a last checkpoint: the first signal drains, the second one stops. After a minute it is killed with all that it started."""
    deadline = time.monotonic() + GOODBYE_SECONDS
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(2 * POLL_SECONDS)
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        for every in (*psutil.Process(process.pid).children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                every.kill()
        return process.wait()


def rows_of(log: Path) -> dict[int, dict[str, float]]:
    """Metrics by step; of a line that is still being written, nothing."""
    found: dict[int, dict[str, float]] = {}
    for line in log.read_text().splitlines(keepends=True) if log.exists() else []:
        if line.endswith("\n"):
            row = json.loads(line)
            found.setdefault(row.pop("step"), {}).update(row)
    return found


def steps_of(log: Path) -> int:
    """Steps of all attempts."""
    return log.read_text().count('"time/step"') if log.exists() else 0


def complete(rows: dict[int, dict[str, float]], step: int) -> bool:
    """Trained, and sent to whoever generates."""
    row = rows.get(step, {})
    return "time/step" in row and ("time/sync" in row or "time/generate" not in row)


def tails(*directories: Path, lines: int = 30) -> list[str]:
    """The ends of all logs below."""
    files = sorted(file for directory in directories for file in directory.rglob("*.log"))
    return [text for file in files for text in [f"== {file}", *file.read_text(errors="replace").splitlines()[-lines:]]]


def summary(ended: Ended, steps: int, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The measures of each step."""
    names = (*SPLIT, *AGREEMENT, *more)
    return [
        {"step": n, **{NAMED.get(name, name.partition("/")[2]): round(row[name], 6) for name in names if name in row}}
        for n, row in sorted(ended.rows.items())
        if "time/step" in row and n <= steps
    ]


def rows_of_steps(common: dict[str, Any], ended: Ended, steps: int, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """`common` and the measures of each step; what the job said when there is none."""
    common = common | {"exit": ended.code}
    return [common | row for row in summary(ended, steps, more)] or [common | {"said": ended.said}]


def trained(rows: Mapping[int, dict[str, float]]) -> int:
    """Steps that were completed. Step 0 has a row, too: of the policy that servers got before any training."""
    return sum("time/step" in row for row in rows.values())


def worst(rows: Iterable[dict[str, float]]) -> dict[str, float | None]:
    """The largest differences between trainer and vLLM of all steps."""
    rows = list(rows)
    return {name.partition("/")[2]: max((row[name] for row in rows if name in row), default=None) for name in AGREEMENT}


def record(file: Path, measured: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """All rows, which `file` has as JSON lines as soon as they are there; their table is printed at the end."""
    rows: list[dict[str, Any]] = []
    for more in measured:
        rows += more
        file.write_text(lines(rows))
    print(table(rows))
    return rows


def lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> str:
    """`columns`: in place of all."""
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(str(row.get(c, "")) for c in columns) + " |" for row in rows)])
