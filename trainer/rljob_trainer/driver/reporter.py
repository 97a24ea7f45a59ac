"""What the driver says of an attempt: phase and progress, for the launcher's report, and metrics, for the sinks."""

from collections.abc import Callable, Mapping
from typing import Any

from rljob_trainer.driver.launcher_files import ProgressFile
from rljob_trainer.reporting.sinks import Sinks

EVALUATED = {"evaluation/reward", "evaluation/loss"}
"""A step that has one of these was evaluated."""


class Reporter:
    """`begin` comes before the first metric."""

    def __init__(self, progress: ProgressFile, is_served: Callable[[], bool], loading: Callable[[], list[str]]):
        """`is_served`: whether enough rollouts have the policy, and the pools are ready. `loading`: roles on ranks of their own that still load."""
        self._progress, self._is_served, self._loading = progress, is_served, loading
        self._sinks: Sinks
        self._rank_phase, self._work_phase = "loading", "training"

    def begin(self, sinks: Sinks, step: int, **fields: Any) -> None:
        """The attempt continues after `step`. `fields`: of the progress."""
        self._sinks = sinks
        known = {"metrics": sinks.of(step), "history": sinks.history(), "evaluation": sinks.evaluation()}
        self._progress.update(step=step, started_from=step, policy_step=step, **known, **fields)

    def update(self, **fields: Any) -> None:
        """Replace fields of the progress, which is not a heartbeat."""
        self._progress.update(**fields)

    def published(self, step: int, digest: str) -> None:
        """The policy of `step` was published; an empty digest: to nobody, so that the one before stands."""
        self._progress.update(policy_step=step, digest=digest or self._progress.progress.digest)

    def connected(self, transports: str) -> None:
        """What the policy travels by."""
        self._progress.update(backend=f"{transports}; {self._progress.progress.backend}")

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.record(step, metrics)
        self._progress.heartbeat()
        self._progress.update(step=step, history=self._sinks.history())

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, in the progress as well."""
        self.record_quietly(step, metrics)
        self._progress.update(metrics=self._sinks.of(step))

    def record_quietly(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step that may not be the last one any more."""
        self._sinks.record(step, dict(metrics))

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.record(step, metrics)
        self._progress.update(evaluation=self._sinks.evaluation())

    def was_evaluated(self, step: int) -> bool:
        return bool(EVALUATED & self._sinks.of(step).keys())

    def moved(self, count: int = 1) -> None:
        """A heartbeat."""
        self._progress.heartbeat(count)

    def rank_moved(self, count: int) -> None:
        """Rank 0's heartbeat. Between steps it only serves newcomers: if they fail again and again, that is no progress."""
        if self._rank_phase:
            self._progress.heartbeat(count)

    def enter(self, rank_phase: str) -> None:
        """What rank 0 does; empty: it waits for the driver."""
        self._rank_phase = rank_phase
        self.show_phase()

    def work(self, phase: str) -> None:
        """What the buffer does, which is shown while rank 0 has nothing of its own to do."""
        self._work_phase = phase
        self.show_phase()

    def show_phase(self) -> None:
        """Again, since `is_served` or `loading` may have changed. Servers that are missing are named first: a user may have to act."""
        starving = self._work_phase in ("evaluating", "generating") and not self._is_served()
        loading = [] if self._rank_phase or starving else self._loading()
        idle = "waiting" if starving else "loading" if loading else self._work_phase
        self._progress.update(phase=self._rank_phase or idle, loading=loading)

    def flush(self) -> None:
        """Write the progress now."""
        self._progress.flush()
