"""Scored responses to the batch of a step. No sample may be lost, none may come twice."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_trainer.batch import Sample, StepBatch
from rljob_trainer.reward.case import RewardFailed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sample: it, or why it cannot be judged."""

    group: int
    sample: int
    result: Sample | RewardFailed


def assemble(
    step: int, prompts: int, samples_per_prompt: int, outcomes: Iterable[Outcome], metrics: dict[str, float]
) -> StepBatch:
    """The batch of `step` in (group, sample) order; `metrics` is what generation measured.

    Raises ConfigurationError when no sample could be judged.
    """
    ordered = sorted(outcomes, key=lambda o: (o.group, o.sample))
    expected = [(g, s) for g in range(prompts) for s in range(samples_per_prompt)]
    held = [(o.group, o.sample) for o in ordered]
    assert held == expected, (
        f"step {step} needs every sample once; lost {set(expected) - set(held)}, {len(held)} of {len(expected)} held"
    )
    samples = tuple(o.result for o in ordered if isinstance(o.result, Sample))
    stale = [s for s in samples if s.policy_step != step - 1]
    assert not stale, f"{len(stale)} samples of step {step} come from another policy than that of step {step - 1}"
    if not samples:
        raise next(o.result for o in ordered if isinstance(o.result, RewardFailed)).as_configuration()
    return StepBatch(step, samples, metrics | batch_metrics(samples, failed=len(ordered) - len(samples)))


def batch_metrics(samples: Sequence[Sample], failed: int) -> dict[str, float]:
    """Of one step, in the names of the metric table."""
    groups: dict[int, set[float]] = defaultdict(set)
    for s in samples:
        groups[s.group].add(s.reward)
    return {
        "reward/mean": sum(s.reward for s in samples) / len(samples),
        "reward/failed": float(failed),
        "reward/same": sum(len(rewards) == 1 for rewards in groups.values()) / len(groups),
        "response_length/mean": sum(len(s.response_tokens) for s in samples) / len(samples),
        "response_length/clipped": sum(s.finish_reason == "length" for s in samples) / len(samples),
    }
