"""Tasks: where batches come from, who gets the policy after a step, how it is evaluated, and what is learnt. The loop and the engine know none of
them.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.algorithm.policy import PolicyObjective
from rljob_trainer.algorithm.preference import PreferenceObjective, RewardModelObjective
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.publication import Publication
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.calls import Announcement, Next, TaskOutcome
from rljob_trainer.wire.collective import Ranks

EVALUATED = {
    "train/loss": "evaluation/loss",
    "train/perplexity": "evaluation/perplexity",
    "train/accuracy": "evaluation/accuracy",
    "train/margin": "evaluation/margin",
}
"""Metrics of an objective, and their names on held-out data."""


class RankTask(Protocol):
    """Where the batches of a job come from, and what follows a trained step. Every method but `restored` is collective."""

    outcome: TaskOutcome
    """Valid once `next` has returned None. succeeded: all steps are trained; drained: the operator wants the pods back."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last batch, such as how long the ranks waited for it."""
        ...

    def next(self, step: int) -> Batch | None:
        """Wait for the batch that trains step `step` + 1. Returns this rank's part of it, or None when there are no more batches."""
        ...

    def publish(self, step: int) -> None:
        """Send the policy of `step`, which was just trained, to the rollouts, if the task has some."""
        ...

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step`, or start to, if that is due."""
        ...

    def restored(self, step: int, digest: str) -> None:
        """Called on rank 0 only. The policy of `step` was restored from a checkpoint, whose manifest gives this digest of its weights."""
        ...

    def digest(self, step: int) -> str:
        """Digest of the weights of the policy of `step`, the last one that was trained; empty for tasks without rollouts."""
        ...


class RolloutTask:
    """See RankTask. While a batch is awaited, rollouts that are new get the policy, and `while_waiting` is called about once a second."""

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
        self.outcome: TaskOutcome = "succeeded"
        self._starved = 0.0

    @property
    def metrics(self) -> Mapping[str, float]:
        return {**self._publication.metrics, "time/starved": self._starved}

    def next(self, step: int) -> Batch | None:
        """See RankTask. Colocated rollouts sleep when this returns a batch."""
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
        """See RankTask. Waits until nothing is generated under the previous policy any more."""
        self._publication.publish(step, self._publication.replicas())

    def evaluate(self, step: int) -> None:
        """Have the driver evaluate the policy of `step`, if that is due, then generate the next batches. Waits for neither."""
        if self._driver:
            self._driver.evaluate(step)

    def restored(self, step: int, digest: str) -> None:
        self._publication.expect(step, digest)

    def digest(self, step: int) -> str:
        return self._publication.digest(step)

    def _ask(self) -> Next:
        """The driver's answer, on every rank."""
        return self._ranks.broadcast(self._driver.next() if self._driver else None)


class ExampleTask:
    """See RankTask. While a batch is awaited, `while_waiting` is called about once a second."""

    def __init__(self, ranks: Ranks, driver: DriverClient | None, engine: Engine, while_waiting: Callable[[], None]):
        """`driver`: on rank 0 only."""
        self._ranks, self._driver, self._engine, self._while_waiting = ranks, driver, engine, while_waiting
        self._training = Scatter(ranks, driver, engine, engine.parts)
        self._held_out = Scatter(ranks, driver, engine, engine.held_out_parts)
        self.outcome: TaskOutcome = "succeeded"
        self.metrics: Mapping[str, float] = {}

    def next(self, step: int) -> Batch | None:
        """See RankTask."""
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
            metrics = {EVALUATED[name]: value for name, value in measured.items() if name in EVALUATED}
            self._driver.evaluated(step, metrics)

    def restored(self, step: int, digest: str) -> None:
        """There are no rollouts whose weights would be compared."""

    def digest(self, step: int) -> str:
        return ""

    def _due(self, step: int) -> Announcement | None:
        """The driver's description of the held-out batch, on every rank; None: no evaluation of `step` is due."""
        while True:
            match self._ranks.broadcast(self._driver.held_out(step) if self._driver else None):
                case {"batch": described}:
                    return described
                case {"over": _}:
                    return None


def objective_of(spec: RLJobSpec) -> Objective:
    """The objective of the trained network. Raises ConfigurationError for a user's function that cannot be loaded."""
    match spec.task:
        case "rl":
            return PolicyObjective(spec)
        case "sft" | "pretrain":
            return CrossEntropyObjective(spec.sft)
        case "dpo":
            return PreferenceObjective(spec.dpo)
        case "rewardModel":
            return RewardModelObjective()
        case "service":
            raise ValueError("the clients of a service say what is learnt")


def require_same_files(objective: Objective, ranks: Ranks) -> None:
    """Raise ConfigurationError when ranks have loaded different versions of a user's file. Collective."""
    digests = ranks.gather([file.digest for file in objective.files])
    for i, file in enumerate(objective.files):
        others = [rank for rank, of_rank in enumerate(digests) if of_rank[i] != digests[0][i]]
        if others:
            there, here = digests[others[0]][i][:12], digests[0][i][:12]
            rule = f"ranks {', '.join(map(str, others))} found another file there, sha256 {there}, than rank 0, {here}"
            fix = "mount one volume or ConfigMap at that path in all pods, and restart the job after you change it"
            raise ConfigurationError(file.field, file.path, rule, fix)


def task_of(
    spec: RLJobSpec,
    ranks: Ranks,
    driver: DriverClient | None,
    engine: Engine,
    senders: Senders | None,
    while_waiting: Callable[[], None],
) -> RankTask:
    """The task of the job.

    Args:
        driver: on rank 0 only
        senders: to the rollouts; None for supervised tasks
        while_waiting: called about once a second while a batch is awaited
    """
    if spec.supervised:
        return ExampleTask(ranks, driver, engine, while_waiting)
    assert senders, "a policy that generates is published"
    publication = Publication(spec, ranks, engine, senders, driver)
    scatter = Scatter(ranks, driver, engine, engine.parts)
    return RolloutTask(ranks, driver, scatter, publication, while_waiting)
