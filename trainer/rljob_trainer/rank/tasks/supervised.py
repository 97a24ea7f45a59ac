"""Supervised tasks: batches of given examples, from the driver. There are no rollouts, so nothing is published."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rljob_trainer.megatron.engine import Engine
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.tasks import Outcome
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.collective import Ranks

EVALUATED = {
    "train/loss": "evaluation/loss",
    "train/perplexity": "evaluation/perplexity",
    "train/accuracy": "evaluation/accuracy",
    "train/margin": "evaluation/margin",
}
"""Metrics of an objective, and their names on held-out data."""


class ExampleSource:
    """See tasks.Source. While a batch is awaited, `while_waiting` is called about once a second."""

    def __init__(self, ranks: Ranks, driver: DriverClient | None, engine: Engine, while_waiting: Callable[[], None]):
        """`driver`: on rank 0 only."""
        self._ranks, self._driver, self._engine, self._while_waiting = ranks, driver, engine, while_waiting
        self._training = Scatter(ranks, driver, engine, engine.parts)
        self._held_out = Scatter(ranks, driver, engine, engine.held_out_parts)
        self.outcome: Outcome = "succeeded"
        self.metrics: Mapping[str, float] = {}

    def next(self, step: int) -> Batch | None:
        """See tasks.Source."""
        began = time.monotonic()
        while True:
            self._while_waiting()
            match self._ranks.broadcast(self._driver.next() if self._driver else None):
                case {"batch": described}:
                    self._engine.memory.enter("score")
                    batch = self._training.receive(described)
                    self.metrics = {"time/data": time.monotonic() - began}
                    return batch
                case {"over": outcome}:
                    self.outcome = outcome
                    return None

    def publish(self, step: int) -> None:
        """There are no rollouts."""

    def evaluate(self, step: int) -> None:
        """Measure the objective on the held-out data, if that is due: forward passes on all ranks."""
        described = self._due(step)
        if not described:
            return
        measured = self._engine.evaluate(self._held_out.receive(described))
        if self._driver:
            found = {EVALUATED[name]: value for name, value in measured.items() if name in EVALUATED}
            self._driver.evaluated(step, found)

    def restored(self, step: int, digest: str) -> None:
        """There are no rollouts whose weights would be compared."""

    def digest(self, step: int) -> str:
        return ""

    def _due(self, step: int) -> dict[str, Any] | None:
        """The driver's description of the held-out batch, on every rank; None: no evaluation of `step` is due."""
        while True:
            match self._ranks.broadcast(self._driver.held_out(step) if self._driver else None):
                case {"batch": described}:
                    return described
                case {"over": _}:
                    return None
