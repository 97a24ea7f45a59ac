"""What is measured of tokens, added over micro-batches, ranks and optimizer steps in any cut."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

LOSS, TOKENS = "loss", "tokens"


@dataclass(frozen=True, slots=True)
class MetricAccumulator:
    """`totals` [k], float64, in the order of `names`: the loss is weighted already, the others are sums over the tokens that are learnt from.
    `maxima`: [k], the maxima single ones."""

    names: tuple[str, ...]
    totals: torch.Tensor
    maxima: torch.Tensor

    @staticmethod
    def zero(columns: tuple[str, ...], device: torch.device) -> "MetricAccumulator":
        """For `columns` in addition to loss and number of tokens."""
        names = (LOSS, TOKENS, *columns)
        return MetricAccumulator(names, *torch.zeros(2, len(names), dtype=torch.float64, device=device))

    @staticmethod
    @torch.no_grad()
    def of(loss: torch.Tensor, mask: torch.Tensor, columns: Mapping[str, torch.Tensor]) -> "MetricAccumulator":
        """`loss`: scalar; `mask` and columns: [t], not negative where the maxima is asked for, 0 outside the mask."""
        values = torch.stack([mask, *columns.values()]).double()
        totals = torch.cat((loss.double()[None], values.sum(1)))
        return MetricAccumulator((LOSS, TOKENS, *columns), totals, torch.cat((totals[:1], values.amax(1))))

    def __add__(self, other: "MetricAccumulator") -> "MetricAccumulator":
        return MetricAccumulator(self.names, self.totals + other.totals, torch.maximum(self.maxima, other.maxima))

    def over_world(self, counts: bool) -> "MetricAccumulator":
        """The sum over all ranks that count; the same on every rank. Collective."""
        totals, maxima = (x.clone() if counts else torch.zeros_like(x) for x in (self.totals, self.maxima))
        dist.all_reduce(totals)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return MetricAccumulator(self.names, totals, maxima)

    def on_host(self) -> "MetricAccumulator":
        """With the numbers in host memory: waits for the device once, and never again."""
        return MetricAccumulator(self.names, self.totals.cpu(), self.maxima.cpu())

    @property
    def is_finite(self) -> bool:
        """Whether the loss is a number."""
        return math.isfinite(self[LOSS])

    def __getitem__(self, name: str) -> float:
        return float(self.totals[self.names.index(name)])

    def mean(self, name: str) -> float:
        """Per token; not a number where there is none, as when every response was cut off and filtered."""
        return self[name] / self[TOKENS] if self[TOKENS] else math.nan

    def max(self, name: str) -> float:
        return float(self.maxima[self.names.index(name)])
