"""Assembles scored responses into the batch of a step, every sample once, with metrics of all of them; and metrics of an evaluation: avg@n, pass@k,
maj@n. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from typing import Any

from rljob_api.metrics import (
    EVALUATION_DATA_SOURCES,
    EVALUATION_METRICS,
    EVALUATION_SETS,
    MOST_REWARD_METRICS,
    own_name,
)
from rljob_api.spec import RLJobSpec
from rljob_trainer.agents import recording
from rljob_trainer.algorithm.shaping import overlong_penalty
from rljob_trainer.reporting.samples import LONGEST_TEXT
from rljob_trainer.rewards.request import KINDS, RewardFailed, SampleFailed
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Outcome:
    """A scored sample, or the reason why it could not be generated or scored."""

    group: int
    sample: int
    result: Trajectory | SampleFailed
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that its reward functions returned in addition to the reward."""
    prediction: str | None = None
    """The answer extracted from the response, for `maj@k`."""
    agent: Mapping[str, float] = field(default_factory=dict)
    """Metrics of an agent's trajectory, by their names in rljob_api/metrics.py."""

    def at(self, group: int) -> "Outcome":
        """The outcome as a member of group number `group` of the step."""
        result = self.result
        moved = replace(result, group=group) if isinstance(result, Trajectory) else result
        return replace(self, group=group, result=moved)


def require_scored(outcomes: Iterable[Outcome]) -> None:
    """Raises SampleFailed.as_error when no sample could be scored."""
    results = [o.result for o in outcomes]
    if results and not any(isinstance(r, Trajectory) for r in results):
        raise next(r for r in results if isinstance(r, SampleFailed)).as_error()


def assemble(
    step: int,
    policies: range,
    prompts: int,
    samples_per_prompt: int,
    outcomes: Iterable[Outcome],
    metrics: dict[str, float],
) -> Batch:
    """The batch of `step`, in the order of (group, sample). Every token was sampled by one of `policies`. `metrics`: of generation."""
    ordered = sorted(outcomes, key=lambda o: (o.group, o.sample))
    require_complete(ordered, range(prompts), samples_per_prompt)
    samples = tuple(o.result for o in ordered if isinstance(o.result, Trajectory))
    rows = tuple(row for s in samples for row in s.rows())
    strange = [s for s in rows if not all(part.policy_step in policies for part in s.sampled_segments)]
    assert not strange, f"{len(strange)} samples of step {step} come from other policies than those of steps {policies}"
    return Batch.of(step, rows, metrics | batch_metrics(samples, rows))


def require_complete(ordered: Sequence[Outcome], groups: range, samples_per_prompt: int) -> None:
    """Assert that every sample of `groups` is there exactly once, in order."""
    expected = [(g, s) for g in groups for s in range(samples_per_prompt)]
    held = [(o.group, o.sample) for o in ordered]
    assert held == expected, f"lost {set(expected) - set(held)}, {len(held)} of {len(expected)} held"


def penalised(sample: Trajectory, spec: RLJobSpec) -> Trajectory:
    """The sample with the penalty of spec.algorithm.overlong subtracted from its reward."""
    length, longest = max(row.response_length for row in sample.rows()), spec.longest_response
    return replace(sample, reward=sample.reward - overlong_penalty(length, longest, spec.algorithm.overlong))


def shaped(outcomes: Sequence[Outcome], spec: RLJobSpec) -> tuple[list[Outcome], dict[str, float]]:
    """`outcomes` with overlong responses penalised, and the mean penalty as a metric; unchanged and empty without such a penalty."""
    if not spec.algorithm.overlong.buffer_tokens:
        return list(outcomes), {}
    shaped_outcomes = [
        replace(o, result=penalised(o.result, spec)) if isinstance(o.result, Trajectory) else o for o in outcomes
    ]
    lost = [
        a.result.reward - b.result.reward
        for a, b in zip(outcomes, shaped_outcomes, strict=True)
        if isinstance(a.result, Trajectory) and isinstance(b.result, Trajectory)
    ]
    return shaped_outcomes, {"reward/overlong_penalty": sum(lost) / len(lost)}


def batch_metrics(samples: Sequence[Trajectory], rows: Sequence[Trajectory]) -> dict[str, float]:
    """Of one step, in the names of the metric table. `rows`: the branches of `samples`."""
    groups: dict[int, set[float]] = defaultdict(set)
    for s in samples:
        groups[s.group].add(s.reward)
    return {
        "reward/mean": sum(s.reward for s in samples) / len(samples),
        "reward/zero_std": sum(len(rewards) == 1 for rewards in groups.values()) / len(groups),
        "response_length/mean": sum(row.response_length for row in rows) / len(rows),
        "response_length/clipped": sum(s.finish_reason == "length" for s in samples) / len(samples),
        "sampling/continued": sum(len({part.policy_step for part in s.sampled_segments}) > 1 for s in rows) / len(rows),
    }


def begun_age(step: int, outcomes: Iterable[Outcome]) -> float:
    """Mean over the trajectories of `step` of their age when they began: steps between the policy of their first token and the one they train."""
    sampled = [o.result.sampled_segments for o in outcomes if isinstance(o.result, Trajectory)]
    return sum(step - 1 - segments[0].policy_step for segments in sampled if segments) / len(sampled)


def reward_metrics(prefix: str, outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Mean of each metric that reward functions returned, over the samples that have it. Of too many names, those that most samples have."""
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.metrics.items():
            values[name].append(value)
    return _means(prefix, values)


def data_source_metrics(prefix: str, outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Mean reward of each named data source. Of too many sources, those with the most samples."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome.result, Trajectory) and outcome.result.data_source:
            rewards[own_name(outcome.result.data_source)].append(outcome.result.reward)
    return _means(prefix, rewards)


def _means(prefix: str, values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    kept = sorted(values, key=lambda name: (-len(values[name]), name))[:MOST_REWARD_METRICS]
    return {prefix + name: sum(values[name]) / len(values[name]) for name in sorted(kept)}


def reward_details(outcome: Outcome, answer: str) -> dict[str, Any]:
    """Metrics and prediction of a sample, as far as its reward functions returned them, and the row's answer, for the sample log."""
    metrics = {"metrics": dict(outcome.metrics)} if outcome.metrics else {}
    prediction = {"prediction": outcome.prediction} if outcome.prediction is not None else {}
    return metrics | prediction | ({"answer": answer[:LONGEST_TEXT]} if answer else {})


def agent_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Means over the trajectories; empty where no agent makes them."""
    measured: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.agent.items():
            measured[name].append(value)
    return {name: sum(values) / len(values) for name, values in measured.items()}


def failure_metrics(outcomes: Sequence[Outcome], with_agent: bool = False) -> dict[str, float]:
    """How many samples have no trajectory or could not be scored, in total and by reason."""
    results = [o.result for o in outcomes]
    counts = _counted("reward/failed", KINDS, [r.kind for r in results if isinstance(r, RewardFailed)])
    if not with_agent:
        return counts
    failed = [r.kind for r in results if isinstance(r, recording.AgentFailed)]
    return counts | _counted("agent/failed", recording.KINDS, failed)


def _counted(name: str, kinds: Sequence[str], failed: Sequence[str]) -> dict[str, float]:
    count = Counter(failed)
    return {name: float(len(failed))} | {f"{name}_{kind}": float(count[kind]) for kind in kinds}


ScoredGroup = Sequence[Outcome]
"""The responses to one prompt."""


def evaluation_metrics(sets: Mapping[str, Sequence[ScoredGroup]], correct_above: float) -> dict[str, float]:
    """All evaluation metrics, by their names in rljob_api/metrics.py.

    Args:
        sets: [name] -> groups of the held-out set, all of the same size; at least one response is scored
        correct_above: a response with a reward above it is correct
    """
    outcomes = [o for groups in sets.values() for group in groups for o in group]
    rewards = [_rewards(group) for groups in sets.values() for group in groups]
    means = [_mean(of_group) for of_group in rewards if of_group]
    failed = sum(not isinstance(o.result, Trajectory) for o in outcomes)
    metrics = {"evaluation/reward": _mean(means), "evaluation/failed": float(failed)}
    metrics |= reward_metrics(EVALUATION_METRICS, outcomes)
    metrics |= data_source_metrics(EVALUATION_DATA_SOURCES, outcomes)
    for name, groups in sets.items():
        measured = set_metrics(groups, correct_above)
        metrics |= {f"{EVALUATION_SETS}{name}/{metric}": value for metric, value in measured.items()}
    return metrics


def set_metrics(groups: Sequence[ScoredGroup], correct_above: float) -> dict[str, float]:
    """avg@n, pass@k and maj@n of groups of n responses, each over the prompts that have enough scored ones; absent where none has.

    avg@n: mean over prompts of the mean reward of their responses. pass@k: for k = 1, 2, 4, ... and n. maj@n: fraction of prompts whose most
    frequent prediction is correct, of n > 1 responses of which some have one.
    """
    count = max(map(len, groups), default=0)
    of_prompts: dict[str, list[float]] = {f"avg@{count}": [_mean(r) for r in map(_rewards, groups) if r]}
    for k in _sizes(count):
        correct = [[r > correct_above for r in _rewards(g)] for g in groups]
        of_prompts[f"pass@{k}"] = [pass_at_k(len(c), sum(c), k) for c in correct if len(c) >= k]
    if count > 1 and any(o.prediction is not None for g in groups for o in g):
        of_prompts[f"maj@{count}"] = [float(majority_is_correct(g, correct_above)) for g in groups if _rewards(g)]
    return {name: _mean(values) for name, values in of_prompts.items() if values}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k responses is correct, drawn without replacement from n of which c are: an unbiased estimate of that of k new
    ones (Chen et al. 2021, arXiv 2107.03374, equation 1). k is at most n."""
    return 1 - comb(n - c, k) / comb(n, k)


def majority_is_correct(group: ScoredGroup, correct_above: float) -> bool:
    """Whether the most frequent prediction among scored responses is correct; ties go to the one that came first. False without predictions."""
    scored = [(o.prediction, o.result.reward) for o in group if isinstance(o.result, Trajectory)]
    votes = Counter(prediction for prediction, _ in scored if prediction is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda prediction: votes[prediction])  # the first of the largest, in their order
    return next(reward for prediction, reward in scored if prediction == winner) > correct_above


def _sizes(count: int) -> list[int]:
    return sorted({2**i for i in range(count.bit_length()) if 2**i <= count} | ({count} if count else set()))


def _rewards(group: ScoredGroup) -> list[float]:
    return [o.result.reward for o in group if isinstance(o.result, Trajectory)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
