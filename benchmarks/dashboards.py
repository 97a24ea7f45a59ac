"""The dashboard of jobs as a Prometheus answers it: recorded runs become a time series by the operator's own metrics, and every panel is drawn.

python -m benchmarks.dashboards DIRECTORY          # needs prometheus and promtool on PATH; writes jobs-light.svg and jobs-dark.svg

The runs are those of benchmarks/runs: metrics.jsonl of jobs that ran on CPU, as far as the dashboard shows it, with the durations of their steps.
Around them, what a status says before the first and after the last step. Grafana has no part in it: panels are drawn from the dashboard's own JSON.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.panels import draw
from docs.pictures.svg import THEMES
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.endpoints import Metrics
from rljob_operator.times import stamp

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "charts/rljob/files/dashboards/jobs.json"
BEGIN, SCRAPE = 1_795_000_000, 2
"""Seconds since the epoch of the first sample, and between two."""
WAITS, LOADS, AFTER = 10.0, 14.0, 12.0
"""Seconds in which a job is pending, starting, and has ended."""
RANKS = 2
"""Of each job; they count as GPUs."""
Series = dict[str, Any]
"""As the API of Prometheus answers: labels under `metric`, and `values`, pairs of a time and a text; of an instant query `value`, one pair."""


@dataclass(frozen=True)
class Run:
    """A recorded job that began `later` seconds after the first one."""

    name: str
    later: float
    rollouts: int

    @property
    def rows(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (ROOT / f"benchmarks/runs/{self.name}.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["step"])

    @property
    def trained(self) -> float:
        """Seconds from the creation of the job to its end."""
        return WAITS + LOADS + sum(row.get("time/step", 0.0) for row in self.rows)

    def status(self, age: float) -> dict[str, Any]:
        """Of the job, so many seconds after its creation."""
        at, done, metrics = WAITS + LOADS, 0, dict[str, float]()
        for row in self.rows:
            at += row.get("time/step", 0.0)
            if at > age:
                break
            done, metrics = int(row["step"]), metrics | {k: v for k, v in row.items() if k != "step"}
        ready = age > WAITS and age < self.trained
        first = WAITS + LOADS + next(row["time/step"] for row in self.rows if "time/step" in row)
        return {
            "state": _state(age, self.trained),
            "attempt": {"number": 1, "startedAt": stamp(BEGIN + self.later + WAITS)},
            "progress": {"step": done, "steps": self.steps, "metrics": metrics},
            "trainer": {"ready": 2 * ready, "desired": 2, "text": "2/2"},
            "rollout": {"ready": self.rollouts * ready, "text": "r" if self.rollouts else ""},
            "accounting": {
                "until": stamp(BEGIN + self.later + age),
                "gpus": RANKS * ready,
                "gpuSeconds": {
                    phase: round(
                        RANKS * sum(row.get(f"time/{phase}", 0.0) for row in self.rows if row["step"] <= done), 3
                    )
                    for phase in ("generate", "train", "sync", "save")
                }
                | {"starting": RANKS * min(LOADS, max(0.0, age - WAITS))},
            },
            **({"firstStepAt": stamp(BEGIN + self.later + first)} if done else {}),
        }


RUNS = (Run("arithmetic", 0.0, 2), Run("dpo", 20.0, 0), Run("rewarded", 35.0, 2))
END = BEGIN + max(run.later + run.trained for run in RUNS) + AFTER
NOW = END - 60
"""When the dashboard is looked at: the last job is in its middle."""


def _state(age: float, trained: float) -> str:
    states = {WAITS: "Pending", WAITS + LOADS: "Starting", trained: "Running"}
    return next((state for until, state in states.items() if age < until), "Succeeded")


def samples() -> Iterator[tuple[str, str]]:
    """Name, and a line of OpenMetrics, of everything that the operator would have exported."""
    cache = ClusterCache(lambda: 0.0)
    metrics = Metrics(cache, {}, lambda: 0.0, {})
    for now in range(BEGIN, int(END), SCRAPE):
        for run in (run for run in RUNS if now >= BEGIN + run.later):
            born = stamp(BEGIN + run.later)
            meta = {"name": run.name, "namespace": "research", "uid": run.name, "resourceVersion": str(now)}
            status = run.status(now - BEGIN - run.later)
            cache.put({"kind": "RLJob", "metadata": meta | {"creationTimestamp": born}, "spec": {}, "status": status})
        for family in text_string_to_metric_families(metrics.text().decode()):
            for sample in (s for s in family.samples if s.name.startswith("rljob_job")):
                labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items())
                yield sample.name, f"{sample.name}{{{labels}}} {sample.value} {now}\n"


@contextmanager
def prometheus(directory: Path) -> Iterator[str]:
    """A server that has all samples; its address."""
    lines: dict[str, list[str]] = {}
    for name, line in samples():
        lines.setdefault(name, []).append(line)
    (directory / "samples").write_text("".join(line for name in sorted(lines) for line in lines[name]) + "# EOF\n")
    store = directory / "data"
    backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(directory / "samples"), str(store)]
    subprocess.run(backfill, check=True, capture_output=True)
    (directory / "none.yaml").write_text("{}")
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={directory}/none.yaml", f"--web.listen-address={address}", f"--storage.tsdb.path={store}"]
    # what vanished from a scrape is gone at once, as when Prometheus scrapes without a replay; and nothing is too old
    flags += [f"--query.lookback-delta={SCRAPE + 1}s", "--storage.tsdb.retention.time=100y"]
    server = subprocess.Popen(["prometheus", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until_ready(f"http://{address}")
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _until_ready(url: str, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def ask(url: str, expression: str, instant: bool) -> list[Series]:
    """What a panel gets for one of its queries: of the time until NOW, or of that moment."""
    expression = re.sub(r"\$(namespace|rljob)\b", ".*", expression)
    span: Mapping[str, float] = {"time": NOW} if instant else {"start": BEGIN, "end": NOW, "step": SCRAPE}
    query = urllib.parse.urlencode({"query": expression, **span})
    with urllib.request.urlopen(f"{url}/api/v1/query{'' if instant else '_range'}?{query}", timeout=60) as answer:
        found: list[Series] = json.load(answer)["data"]["result"]
    return found


def answers(url: str) -> dict[int, list[list[Series]]]:
    """Of every panel by its id, for each of its queries."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {
        p["id"]: [ask(url, t["expr"], t.get("instant", False)) for t in p["targets"]] for p in panels if "targets" in p
    }


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, prometheus(Path(scratch)) as url:
        found = answers(url)
    directory.mkdir(parents=True, exist_ok=True)
    for mode, theme in THEMES.items():
        picture = draw(json.loads(DASHBOARD.read_text()), found, (BEGIN, NOW), theme)
        (directory / f"jobs-{mode}.svg").write_text(picture.svg())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
