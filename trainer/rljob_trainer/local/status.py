"""What a person sees of a job on one machine: one line per change. Pure."""

from collections.abc import Mapping

from rljob_api.protocol import Progress, Report
from rljob_trainer.local.decide import LocalState, Seen

STEADY = ("evaluating", "generating", "training", "syncing", "saving")
"""Phases that alternate within a step; a line for each would be noise."""


def line(state: LocalState, seen: Seen) -> str:
    """For example `attempt 1: step 12/100, reward 0.438, loss 0.0012, 3.4 s; trainers 2/2, rollouts 2/2`."""
    trainers = sum(_runs(report, state) for report in seen.trainers.values())
    counts = f"trainers {trainers}/{len(seen.trainers)}"
    for role, launchers in seen.gangs.items():
        counts += f", {role} {sum(_runs(report, state) for report in launchers.values())}/{len(launchers)}"
    serving = {"rollouts": seen.rollouts} | dict(seen.pools)
    counts += "".join(f", {name} {_ready(servers)}" for name, servers in serving.items() if servers)
    if state.attempt == 0:
        return f"starting; {counts}"
    order = "" if state.command == "run" else f" ({state.command})"
    progress = next((r.progress for r in seen.trainers.values() if r and _runs(r, state) and r.progress), None)
    return f"attempt {state.attempt}{order}: {_progress(progress)}; {counts}"


def warnings(seen: Seen) -> list[str]:
    """What the trainer warns of."""
    return next((r.progress.warnings for r in seen.trainers.values() if r and r.progress), [])


def _ready(servers: Mapping[str, Report | None]) -> str:
    return f"{sum(report is not None and report.state == 'running' for report in servers.values())}/{len(servers)}"


def summary(seen: Seen) -> str:
    """What a job that has succeeded leaves behind, one fact a line."""
    progress = next((r.progress for r in seen.trainers.values() if r and r.progress), None)
    if progress is None:
        return "nothing reported"
    facts = [f"{progress.step} steps"]
    if progress.evaluation:
        unrewarded = any(point.reward is None for point in progress.history)
        values = ", ".join(f"{name} {value:.3f}" for name, value in progress.evaluation.items())
        facts.append(f"held-out {'loss' if unrewarded else 'reward'}: {values}")
    facts += [f"checkpoint: {checkpoint.path}" for checkpoint in progress.checkpoints[-1:]]
    if progress.export:
        facts.append(f"Hugging Face model: {progress.export}")
    facts += [f"warning: {text}" for text in progress.warnings]
    return "\n".join(facts)


def _runs(report: Report | None, state: LocalState) -> bool:
    return report is not None and report.attempt == state.attempt and report.state == "running"


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return "starting"
    if progress.phase == "fetching":
        return f"fetching {progress.fetching}"
    if progress.started_from is None:
        return progress.phase
    parts = [f"step {progress.step}/{progress.steps}"]
    if progress.history:
        last = progress.history[-1]
        parts += [] if last.reward is None else [f"reward {last.reward:.3f}"]
        parts += [f"loss {last.loss:.4f}", f"{last.seconds:.1f} s"]
    if progress.phase not in STEADY:
        parts.append(" ".join([progress.phase, *progress.loading]))
    return ", ".join(parts)
