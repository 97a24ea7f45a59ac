"""What is measured of tokens, added over micro-batches, ranks and optimizer steps in any cut; and the metrics made of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

LOSS, TOKENS = "loss", "tokens"


@dataclass(frozen=True, slots=True)
class MetricAccumulator:
    """`totals` [k], float64, in the order of `names`: the loss is weighted already, the others are sums over the tokens that are learnt from.
    `largest`: [k], the largest single ones."""

    names: tuple[str, ...]
    totals: torch.Tensor
    largest: torch.Tensor

    @staticmethod
    def zero(columns: tuple[str, ...], device: torch.device) -> "MetricAccumulator":
        """For `columns` in addition to loss and number of tokens."""
        names = (LOSS, TOKENS, *columns)
        return MetricAccumulator(names, *torch.zeros(2, len(names), dtype=torch.float64, device=device))

    @staticmethod
    @torch.no_grad()
    def of(loss: torch.Tensor, mask: torch.Tensor, columns: Mapping[str, torch.Tensor]) -> "MetricAccumulator":
        """`loss`: scalar; `mask` and columns: [t], not negative where the largest is asked for, 0 outside the mask."""
        values = torch.stack([mask, *columns.values()]).double()
        totals = torch.cat((loss.double()[None], values.sum(1)))
        return MetricAccumulator((LOSS, TOKENS, *columns), totals, torch.cat((totals[:1], values.amax(1))))

    def __add__(self, other: "MetricAccumulator") -> "MetricAccumulator":
        return MetricAccumulator(self.names, self.totals + other.totals, torch.maximum(self.largest, other.largest))

    def over_world(self, counts: bool) -> "MetricAccumulator":
        """The sum over all ranks that count; the same on every rank. Collective."""
        totals, largest = (x.clone() if counts else torch.zeros_like(x) for x in (self.totals, self.largest))
        dist.all_reduce(totals)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return MetricAccumulator(self.names, totals, largest)

    def __getitem__(self, name: str) -> float:
        return float(self.totals[self.names.index(name)])

    def mean(self, name: str) -> float:
        """Per token; not a number where there is none, as when every response was cut off and filtered."""
        return self[name] / self[TOKENS] if self[TOKENS] else math.nan

    def worst(self, name: str) -> float:
        return float(self.largest[self.names.index(name)])


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer step did."""

    sums: MetricAccumulator
    norm: float
    """Of the gradient, before clipping."""
    rate: float
    """Learning rate."""
    skipped: bool


def policy_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Of the optimizer steps, and per response token that was learnt from."""
    total = sums_of(updates)
    means = {f"train/{name}": total.mean(column) for name, column in _TRAIN.items()}
    rollout = {f"train_rollout/{name}": total.mean(column) for name, column in _ROLLOUT.items()}
    return (
        of_steps("train", updates)
        | means
        | rollout
        | {
            "train/policy_loss": total.mean("policy"),
            "train_rollout/log_prob_diff_max": total.worst("difference"),
            "train_rollout/effective_sample_size": _effective(total),
        }
    )


_TRAIN = {
    "kl": "kl",
    "entropy": "entropy",
    "approx_kl": "approx_kl",
    "clip_fraction": "clipped",
    "ratio_mean": "ratio",
    "rejected": "rejected",
}
_ROLLOUT = {
    "log_prob_diff_mean": "difference",
    "kl": "mismatch_kl",
    "ratio_mean": "mismatch_ratio",
    "weight_mean": "weight",
}


def sums_of(updates: Sequence[Update]) -> MetricAccumulator:
    """Of the optimizer steps that were taken; of all when none was."""
    first, *others = [u.sums for u in _taken(updates)]
    return sum(others, first)


def of_steps(what: str, updates: Sequence[Update]) -> dict[str, float]:
    """Means over the optimizer steps of a model. One that was skipped counts in `skipped` alone, unless all were."""
    chosen = _taken(updates)
    return {
        f"{what}/loss": sums_of(updates)[LOSS] / len(chosen),
        f"{what}/grad_norm": sum(u.norm for u in chosen) / len(chosen),
        f"{what}/learning_rate": sum(u.rate for u in chosen) / len(chosen),
        f"{what}/skipped": float(sum(u.skipped for u in updates)),
    }


def _taken(updates: Sequence[Update]) -> Sequence[Update]:
    return [u for u in updates if not u.skipped] or updates


def _effective(total: MetricAccumulator) -> float:
    """(sum r)^2 / (n sum r^2)"""
    squares = total[TOKENS] * total["mismatch_square"]
    return total["mismatch_ratio"] ** 2 / squares if squares else math.nan
