"""Evaluation metrics of responses to held-out prompts: avg@n, pass@k, maj@n. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb

from rljob_api.metrics import EVALUATION_DATA_SOURCES, EVALUATION_METRICS, EVALUATION_SETS
from rljob_trainer.driver.buffer.assembly import Outcome, data_source_metrics, reward_metrics
from rljob_trainer.wire.trajectory import Trajectory

Group = Sequence[Outcome]
"""The responses to one prompt."""


def evaluation_metrics(sets: Mapping[str, Sequence[Group]], correct_above: float) -> dict[str, float]:
    """All evaluation metrics, by their names in rljob_api/metrics.py.

    Args:
        sets: [name] -> groups of the held-out set, all of the same size; at least one response is scored
        correct_above: a response with a reward above it is correct
    """
    outcomes = [o for groups in sets.values() for group in groups for o in group]
    means = [_mean(rewards) for groups in sets.values() for group in groups if (rewards := _rewards(group))]
    failed = sum(not isinstance(o.result, Trajectory) for o in outcomes)
    found = {"evaluation/reward": _mean(means), "evaluation/failed": float(failed)}
    found |= reward_metrics(EVALUATION_METRICS, outcomes)
    found |= data_source_metrics(EVALUATION_DATA_SOURCES, outcomes)
    for name, groups in sets.items():
        measured = set_metrics(groups, correct_above)
        found |= {f"{EVALUATION_SETS}{name}/{metric}": value for metric, value in measured.items()}
    return found


def set_metrics(groups: Sequence[Group], correct_above: float) -> dict[str, float]:
    """avg@n, pass@k and maj@n of groups of n responses, each over the prompts that have enough scored ones; absent where none has.

    avg@n: mean over prompts of the mean reward of their responses. pass@k: for k = 1, 2, 4, ... and n. maj@n: fraction of prompts whose most
    frequent prediction is correct, of n > 1 responses of which some have one.
    """
    count = max(map(len, groups), default=0)
    found: dict[str, list[float]] = {f"avg@{count}": [_mean(r) for g in groups if (r := _rewards(g))]}
    for k in _sizes(count):
        correct = [[r > correct_above for r in _rewards(g)] for g in groups]
        found[f"pass@{k}"] = [pass_at_k(len(c), sum(c), k) for c in correct if len(c) >= k]
    if count > 1 and any(o.prediction is not None for g in groups for o in g):
        found[f"maj@{count}"] = [float(majority_is_correct(g, correct_above)) for g in groups if _rewards(g)]
    return {name: _mean(values) for name, values in found.items() if values}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k responses is correct, drawn without replacement from n of which c are: an unbiased estimate of that of k new
    ones (Chen et al. 2021, arXiv 2107.03374, equation 1). k is at most n."""
    return 1 - comb(n - c, k) / comb(n, k)


def majority_is_correct(group: Group, correct_above: float) -> bool:
    """Whether the most frequent prediction among scored responses is correct; ties go to the one that came first. False without predictions."""
    scored = [(o.prediction, o.result.reward) for o in group if isinstance(o.result, Trajectory)]
    votes = Counter(prediction for prediction, _ in scored if prediction is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda prediction: votes[prediction])  # the first of the largest, in their order
    return next(reward for prediction, reward in scored if prediction == winner) > correct_above


def _sizes(count: int) -> list[int]:
    return sorted({2**i for i in range(count.bit_length()) if 2**i <= count} | ({count} if count else set()))


def _rewards(group: Group) -> list[float]:
    return [o.result.reward for o in group if isinstance(o.result, Trajectory)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
