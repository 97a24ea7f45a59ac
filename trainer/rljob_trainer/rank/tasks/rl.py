"""Reinforcement learning: batches of scored responses of the policy, from the driver."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.publication import Publication
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.tasks import Outcome
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.collective import Ranks


class RolloutSource:
    """See tasks.Source. While a batch is awaited, rollouts that are new get the policy, and `while_waiting` is called about once a second."""

    def __init__(
        self,
        ranks: Ranks,
        driver: DriverClient | None,
        scatter: Scatter,
        publication: Publication,
        while_waiting: Callable[[], None],
    ):
        """`driver`: on rank 0 only."""
        self._ranks, self._driver, self._scatter = ranks, driver, scatter
        self._publication, self._while_waiting = publication, while_waiting
        self.outcome: Outcome = "succeeded"
        self._starved = 0.0

    @property
    def metrics(self) -> Mapping[str, float]:
        return {**self._publication.metrics, "time/starved": self._starved}

    def next(self, step: int) -> Batch | None:
        """See tasks.Source. Colocated rollouts sleep when this returns a batch."""
        began = time.monotonic()
        while True:
            self._while_waiting()
            match self._ask():
                case {"batch": described}:
                    self._starved = time.monotonic() - began
                    self._publication.suspend(described["probe"])
                    return self._scatter.receive(described)
                case {"newcomers": replicas}:
                    self._publication.publish(step, replicas)
                case {"over": outcome}:
                    self.outcome = outcome
                    return None

    def publish(self, step: int) -> None:
        """See tasks.Source. Waits until nothing is generated under the previous policy any more."""
        self._publication.publish(step, self._publication.replicas())

    def evaluate(self, step: int) -> None:
        """Have the driver evaluate the policy of `step`, if that is due, then generate the next batches. Waits for neither."""
        if self._driver:
            self._driver.evaluate(step)

    def restored(self, step: int, digest: str) -> None:
        self._publication.expect(step, digest)

    def digest(self, step: int) -> str:
        return self._publication.digest(step)

    def _ask(self) -> dict[str, Any]:
        """The driver's answer (DriverClient.next), on every rank."""
        return self._ranks.broadcast(self._driver.next() if self._driver else None)
