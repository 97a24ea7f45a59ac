"""Reinforcement learning: batches of what the policy itself generated, scored, from rank 0's driver."""

from collections.abc import Callable
from typing import Any

from rljob_trainer.batch import Batch
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.publication import Publication
from rljob_trainer.scatter import Scatter
from rljob_trainer.tasks import Outcome


class RolloutSource:
    """While a batch is awaited, newcomers among the rollouts get the policy, and `between` is called about every second."""

    def __init__(
        self,
        ranks: Ranks,
        driver: DriverClient | None,
        scatter: Scatter,
        publication: Publication,
        between: Callable[[], None],
    ):
        """`driver`: on rank 0 only."""
        self._ranks, self._driver, self._scatter = ranks, driver, scatter
        self._publication, self._between = publication, between
        self.outcome: Outcome = "succeeded"

    def next(self, step: int) -> Batch | None:
        """The batch after `step`, once it is there. Colocated rollouts sleep when this returns."""
        while True:
            self._between()
            match self._ask():
                case {"batch": described}:
                    self._publication.suspend(described["probe"])
                    return self._scatter.receive(described)
                case {"newcomers": replicas}:
                    self._publication.publish(step, replicas)
                case {"over": outcome}:
                    self.outcome = outcome
                    return None

    def _ask(self) -> dict[str, Any]:
        """The driver's answer, on every rank."""
        return self._ranks.broadcast(self._driver.next() if self._driver else None)
