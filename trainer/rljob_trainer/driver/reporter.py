"""Reports an attempt: phase and progress to the launcher, metrics to the sinks, and signs that a job which runs well learns too little."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_trainer.reporting.sinks import EVALUATIONS, Sinks
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.wire.launcher_files import ProgressFile

log = logging.getLogger(__name__)
STEPS = 3
"""In a row, after which a sign is worth a warning."""
NEARLY_ALL, MANY = 0.95, 0.05
"""Fractions of prompts, and of samples."""
HELP = "see docs/troubleshooting.md, Nothing is learnt"

Metrics = Mapping[str, float]
SIGNS: dict[str, tuple[Callable[[Metrics, float], bool], str]] = {
    "failures": (
        lambda _, failed: failed >= MANY,
        "5 % of the samples or more leave their step, since rewards or agents fail (reward/failed, agent/failed); "
        "logs/attempt-N/driver.log below spec.checkpoint.path has the errors",
    ),
    "rewards": (
        lambda m, _: m.get("reward/zero_std", 0.0) >= NEARLY_ALL,
        "all responses to a prompt get the same reward, for nearly all prompts (reward/zero_std), so that nothing is learnt from them",
    ),
    "gradient": (
        lambda m, _: m.get("train/grad_norm") == 0.0,
        "the gradient is 0 (train/grad_norm), so that nothing is learnt",
    ),
    "rate": (
        lambda m, _: m.get("train/learning_rate") == 0.0,
        "the learning rate is 0 (train/learning_rate), so that nothing is learnt",
    ),
}
"""By name: whether the metrics of a step show it, or the fraction of samples that failed, and what it means. The first explains the others."""
OF_UPDATES = ("gradient", "rate")
"""Those of a step that updates the policy: while a critic warms up, none does."""


class Alarms:
    """Watches the metrics of an attempt's steps."""

    def __init__(self, spec: RLJobSpec):
        compares = spec.task == "rl" and spec.train.samples_per_prompt > 1 and not spec.algorithm.distillation
        applies = {"failures": spec.task == "rl", "rewards": compares}
        self._signs = [name for name in SIGNS if applies.get(name, True)]
        self._samples = spec.train.prompts_per_step * spec.train.samples_per_prompt
        self._warmup = spec.critic.warmup_steps if spec.critic else 0
        self._seen: Counter[str] = Counter()
        self._failed: deque[float] = deque(maxlen=STEPS)
        """Samples of the last steps that failed: those of one prompt fail together, so that single steps have many or none."""
        self.texts: list[str] = []
        """What has to be said after the last step."""

    def after(self, step: int, metrics: Metrics) -> None:
        """The metrics of `step`. A warning stays until its sign is gone; it is logged once."""
        before = self.texts
        self._failed.append(metrics.get("reward/failed", 0.0) + metrics.get("agent/failed", 0.0))
        failed = sum(self._failed) / len(self._failed) / self._samples
        for name in self._signs:
            counts = step > self._warmup or name not in OF_UPDATES
            self._seen[name] = self._seen[name] + 1 if counts and SIGNS[name][0](metrics, failed) else 0
        lasting = [name for name in self._signs if self._seen[name] >= STEPS][:1]
        self.texts = [f"since step {step - self._seen[name] + 1}, {SIGNS[name][1]}; {HELP}" for name in lasting]
        for text in self.texts:
            if text not in before:
                log.warning("%s", text)


class Reporter:
    """Call `begin` before the first metric."""

    def __init__(
        self,
        progress: ProgressFile,
        is_served: Callable[[], bool],
        loading: Callable[[], list[str]],
        answers: Callable[[], str],
        alarms: Alarms,
        timeline: Timeline | None = None,
    ):
        """`is_served`: whether enough rollouts have the policy, and the pools are ready. `loading`: roles whose models are still being loaded.
        `answers`: whose answers to requests are awaited. `alarms` watches the metrics; `timeline` has what rank 0 does when."""
        self._progress, self._is_served, self._loading, self._answers = progress, is_served, loading, answers
        self._alarms, self._standing = alarms, progress.progress.warnings
        self.timeline = timeline or Timeline()
        self._rank_awaits = ""
        progress.awaited = self._awaited
        self._sinks: Sinks
        self._rank_phase, self._work_phase = "loading", "training"

    def begin(self, sinks: Sinks, step: int, **fields: Any) -> None:
        """The attempt starts after `step`. `fields`: more fields of the progress."""
        self._sinks = sinks
        known = {"metrics": sinks.of(step), "history": sinks.history(), "pace": sinks.pace()}
        known |= {"evaluation": sinks.evaluation(), "saving": sinks.saving()}
        self._progress.update(step=step, started_from=step, policy_step=step, **known, **fields)

    def update(self, **fields: Any) -> None:
        """Replace fields of the progress. Not a heartbeat."""
        self._progress.update(**fields)

    def published(self, step: int, digest: str) -> None:
        """The policy of `step` was published. The digest is empty when there was no rollout to publish to."""
        self._progress.update(policy_step=step, digest=digest or self._progress.progress.digest)

    def connected(self, transports: str) -> None:
        """Add how NCCL connects the ranks to the reported backend."""
        self._progress.update(backend=f"{transports}; {self._progress.progress.backend}")

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done."""
        self.record(step, metrics)
        self._progress.heartbeat()
        self._alarms.after(step, metrics)
        warnings = [*self._standing, *self._alarms.texts]
        history, pace = self._sinks.history(), self._sinks.pace()
        self._progress.update(step=step, history=history, pace=pace, warnings=warnings)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of the current step, and show them in the progress."""
        self.record_quietly(step, metrics)
        self._progress.update(metrics=self._sinks.of(step))

    def record_quietly(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step that may not be the current one any more."""
        self._sinks.record(step, dict(metrics))

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.record(step, metrics)
        self._progress.update(evaluation=self._sinks.evaluation())

    def was_evaluated(self, step: int) -> bool:
        return not self._sinks.of(step).keys().isdisjoint(EVALUATIONS)

    def moved(self, count: int = 1) -> None:
        """Progress was made."""
        self._progress.heartbeat(count)

    def rank_moved(self, count: int) -> None:
        """Rank 0's heartbeats. They do not count while it waits for the driver: publishing again and again to rollouts that fail is no progress."""
        if self._rank_phase:
            self._progress.heartbeat(count)

    def rank_awaits(self, what: str) -> None:
        """Set what rank 0 waits for; empty: nothing."""
        self._rank_awaits = what

    def _awaited(self) -> str:
        """What nothing moves without, asked when nothing has moved for a while."""
        phase = self._progress.progress.phase
        if phase in ("generating", "evaluating"):
            return f"{phase}: waiting for {self._answers() or 'rewards'}"
        return f"{phase}: waiting for {self._rank_awaits}" if self._rank_awaits else f"{phase}: nothing moves"

    def enter(self, rank_phase: str) -> None:
        """Set what rank 0 does; empty: it waits for the driver."""
        self._rank_phase, self._rank_awaits = rank_phase, ""
        self.timeline.turn(names.ROLE_TRAINER, rank_phase)
        self.show_phase()

    def work(self, phase: str) -> None:
        """Set what the buffer does, which is the phase while rank 0 waits for the driver."""
        self._work_phase = phase
        self.show_phase()

    def show_phase(self) -> None:
        """Show the phase again, since `is_served` or `loading` may have changed. Missing servers (`waiting`) come before models that are loaded
        (`loading`), since a user may have to act."""
        starving = self._work_phase in ("evaluating", "generating") and not self._is_served()
        loading = [] if self._rank_phase or starving else self._loading()
        idle = "waiting" if starving else "loading" if loading else self._work_phase
        self._progress.update(phase=self._rank_phase or idle, loading=loading)

    def flush(self) -> None:
        """Write the progress now."""
        self._progress.flush()
