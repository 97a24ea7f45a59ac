"""All sinks behind one call, the trackers that a job's environment names, and the run's history as they have it. metrics.jsonl holds every metric
at full precision, one object per line; a resumed run continues it.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import median

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_api import names
from rljob_api.metrics import EVALUATION_DATA_SOURCES, require_known
from rljob_api.protocol import Control, Point
from rljob_trainer.reporting import mlflow_server, swanlab_server, weights_and_biases
from rljob_trainer.reporting.tracker import RunStatus, Tracker

HISTORY = 64
"""Points that status carries (protocol.Progress.history), and steps whose metrics are kept in memory."""
PACE_STEPS = 10
EVALUATIONS = ("evaluation/reward", "evaluation/loss")
"""Held-out reward and, for tasks without rewards, loss."""
FLUSH_SECONDS = 10

log = logging.getLogger(__name__)


class MetricsLog:
    """Lines `{"step": 3, "train/loss": ...}`, in the order they were measured; several lines may belong to one step."""

    def __init__(self, file: Path, start: int):
        """Drops lines of steps after `start`, and what a killed process or a machine without power left half written.

        By a new file in the old one's place: an attempt that was partitioned away and still runs writes to the old one.
        """
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".tmp")
        scratch.write_text("".join(line for line, record in self._records() if record["step"] <= start))
        self._stream = scratch.open("a", buffering=1)
        scratch.replace(file)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """`repr` of a float is exact, so bit-equal losses are equal lines."""
        self._stream.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self) -> None:
        self._stream.close()

    def by_step(self) -> dict[int, dict[str, float]]:
        """All metrics of each step, steps ascending."""
        merged: dict[int, dict[str, float]] = {}
        for _, record in self._records():
            merged.setdefault(record["step"], {}).update({k: v for k, v in record.items() if k != "step"})
        return dict(sorted(merged.items()))

    def _records(self) -> Iterator[tuple[str, dict]]:
        if not self._file.exists():
            return
        for line in self._file.read_text().splitlines(keepends=True):
            record = _parsed(line)
            if record:
                yield line, record


def _parsed(line: str) -> dict | None:
    """None for what is not a whole record."""
    try:
        return json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None


class Sinks:
    """Console, metrics.jsonl, TensorBoard, and the trackers of the job. Opened at the step that the attempt starts from; what lies beyond it is
    dropped."""

    def __init__(self, root: Path, start: int, steps: int, trackers: Sequence[Tracker] = ()):
        self._steps = steps
        self._metrics = MetricsLog(names.metrics_file(root), start)
        self._recent: dict[int, dict[str, float]] = {}
        """By step, the last HISTORY."""
        self._points: dict[int, Point] = {}
        """By step, thinned over the whole run."""
        self._evaluations: dict[str, dict[int, float]] = {}
        """By metric and step, the first and the last."""
        self._saving: float | None = None
        for step, metrics in self._metrics.by_step().items():
            self._keep(step, metrics)
        self._tensorboard = TensorBoard(names.tensorboard_dir(root), start + 1)
        self._trackers = trackers

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Measurements of one step; may come in several parts."""
        require_known(metrics)
        self._metrics.append(step, metrics)
        self._tensorboard.append(step, metrics)
        for tracker in self._trackers:
            tracker.append(step, metrics)
        self._keep(step, metrics)
        if "train/tokens" in metrics:
            log.info("%s", step_line(step, self._steps, metrics))
        elif not metrics.keys().isdisjoint(EVALUATIONS):
            log.info("%s", evaluation_line(step, metrics))

    def of(self, step: int) -> dict[str, float]:
        """What is known of one of the last steps; empty for an earlier one."""
        return dict(self._recent.get(step, {}))

    def history(self) -> list[Point]:
        """Main metrics of steps that are spread evenly over the run, and of the last one."""
        return [point for _, point in sorted(self._points.items())]

    def pace(self) -> float | None:
        """Median duration of the last PACE_STEPS steps, in seconds, which a step that saved does not shift; None before the first. The history says
        less of them: it is thinned."""
        recent = [metrics["time/step"] for _, metrics in sorted(self._recent.items()) if "time/step" in metrics]
        return median(recent[-PACE_STEPS:]) if recent else None

    def saving(self) -> float | None:
        """Seconds that the last checkpoint took, with what was written in the background; None before the first."""
        return self._saving

    def evaluation(self) -> dict[str, float]:
        """`first` and `last` held-out reward or, for tasks without rewards, loss; empty before the first."""
        scores = next((self._evaluations[name] for name in EVALUATIONS if name in self._evaluations), {})
        return {"first": scores[min(scores)], "last": scores[max(scores)]} if scores else {}

    def close(self, end: RunStatus = "succeeded") -> None:
        self._metrics.close()
        self._tensorboard.close()
        for tracker in self._trackers:
            tracker.close(end)

    def _keep(self, step: int, metrics: Mapping[str, float]) -> None:
        """What the status will show of them; the rest is in metrics.jsonl."""
        self._recent.setdefault(step, {}).update(metrics)
        if "time/save" in metrics:
            self._saving = metrics["time/save"] + metrics.get("time/save_background", 0.0)
        if "train/loss" in self._recent[step]:
            self._points = thinned(self._points | {step: _point(step, self._recent[step])})
        oldest = max(self._recent) - HISTORY + 1
        self._recent = {s: m for s, m in self._recent.items() if s >= oldest}
        for name in metrics.keys() & EVALUATIONS:
            scores = self._evaluations.get(name, {}) | {step: metrics[name]}
            self._evaluations[name] = {s: scores[s] for s in (min(scores), max(scores))}


def thinned(points: Mapping[int, Point]) -> dict[int, Point]:
    """Steps that a power of two divides, as small a one as leaves HISTORY points, and the last. Points that are thinned again and again as a run goes
    on are those of the run as a whole."""
    last = max(points)
    apart = next(2**i for i in count() if last // 2**i < HISTORY)
    return {step: point for step, point in points.items() if step % apart == 0 or step == last}


def _point(step: int, metrics: Mapping[str, float]) -> Point:
    reward = metrics.get("reward/mean")
    return Point(step=step, reward=reward, loss=metrics["train/loss"], seconds=metrics["time/step"])


class TensorBoard:
    """One event file per attempt, written without torch or TensorFlow."""

    def __init__(self, directory: Path, first_step: int):
        """Points of an earlier attempt at `first_step` and later are hidden by the session mark (TensorBoard's own rule for restarts)."""
        self._writer = EventFileWriter(str(directory), flush_secs=FLUSH_SECONDS)
        self._writer.add_event(
            Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))
        )

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()


def step_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """`step 120/500 | 8.4s | reward 0.610 | loss 0.0123 | ...`; a part whose metric is missing is left out."""
    parts = [f"step {step}/{steps}"]
    parts += [template.format(metrics[name]) for name, template in _PARTS if name in metrics]
    if "perf/tokens_per_s" in metrics:
        parts.append(f"{_thousands(metrics['perf/tokens_per_s'])} tok/s")
    return " | ".join(parts)


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    """`evaluation at step 20 | reward 0.610 | aime/avg@16 0.402 | ...`, without what one response per prompt says no more of than the reward."""
    shown = [name for name in metrics if name != "evaluation/failed" and not name.endswith("@1")]
    parts = [f"{n.partition('/')[2]} {metrics[n]:.3f}" for n in shown if not n.startswith(EVALUATION_DATA_SOURCES)]
    return " | ".join([f"evaluation at step {step}", *parts])


_PARTS = (
    ("time/step", "{:.1f}s"),
    ("reward/mean", "reward {:.3f}"),
    ("train/loss", "loss {:.4f}"),
    ("train/kl", "kl {:.4f}"),
    ("train/entropy", "entropy {:.2f}"),
    ("response_length/mean", "length {:.1f}"),
    ("sampling/rounds", "rounds {:.0f}"),
    ("train_rollout/log_prob_diff_mean", "log-prob diff {:.1e}"),
)


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def connect_trackers(control: Control, environment: Mapping[str, str]) -> list[Tracker]:
    """Those that are asked for and answer. Raises ConfigurationError where one cannot work."""
    trackers: list[Tracker | None] = [
        weights_and_biases.connect(control, environment),
        mlflow_server.connect(control, environment),
        swanlab_server.connect(control, environment),
    ]
    return [tracker for tracker in trackers if tracker]
