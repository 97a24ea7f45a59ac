"""All sinks behind one call, and the run's history as they have it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from rljob_api import names
from rljob_api.metrics import require_known
from rljob_api.protocol import Point
from rljob_trainer.report.console import evaluation_line, step_line
from rljob_trainer.report.metrics_log import MetricsLog
from rljob_trainer.report.tensorboard import TensorBoard
from rljob_trainer.report.weights_and_biases import WeightsAndBiases

HISTORY = 64
"""Points that status carries (protocol.Progress.history)."""

log = logging.getLogger(__name__)


class Sinks:
    """Console, metrics.jsonl, TensorBoard and, if there is one, a run of Weights & Biases. Opened at the step that the attempt starts from; what
    lies beyond it is dropped."""

    def __init__(self, root: Path, start: int, steps: int, run: WeightsAndBiases | None = None):
        self._steps = steps
        self._metrics = MetricsLog(names.metrics_file(root), start)
        self._by_step = self._metrics.by_step()
        self._tensorboard = TensorBoard(names.tensorboard_dir(root), start + 1)
        self._run = run

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Measurements of one step; may come in several parts."""
        require_known(metrics)
        self._metrics.append(step, metrics)
        self._tensorboard.append(step, metrics)
        if self._run:
            self._run.append(step, metrics)
        self._by_step.setdefault(step, {}).update(metrics)
        if "train/tokens" in metrics:
            log.info("%s", step_line(step, self._steps, metrics))
        elif "evaluation/reward" in metrics:
            log.info("%s", evaluation_line(step, metrics))

    def of(self, step: int) -> dict[str, float]:
        """What is known of a step."""
        return dict(self._by_step.get(step, {}))

    def history(self) -> list[Point]:
        """Main metrics of the last steps."""
        trained = [(step, m) for step, m in sorted(self._by_step.items()) if "train/loss" in m]
        return [_point(step, m) for step, m in trained[-HISTORY:]]

    def evaluation(self) -> dict[str, float]:
        """`first` and `last` held-out reward; empty before the first."""
        rewards = [m["evaluation/reward"] for _, m in sorted(self._by_step.items()) if "evaluation/reward" in m]
        return {"first": rewards[0], "last": rewards[-1]} if rewards else {}

    def close(self) -> None:
        self._metrics.close()
        self._tensorboard.close()
        if self._run:
            self._run.close()


def _point(step: int, metrics: Mapping[str, float]) -> Point:
    return Point(step=step, reward=metrics["reward/mean"], loss=metrics["train/loss"], seconds=metrics["time/step"])
