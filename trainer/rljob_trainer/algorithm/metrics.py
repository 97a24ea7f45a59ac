"""Accumulates per-token metrics over micro-batches, ranks and optimizer steps. The result does not depend on how tokens are split."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

LOSS, TOKENS = "loss", "tokens"


@dataclass(frozen=True, slots=True)
class MetricAccumulator:
    """Sums and maxima of k metrics."""

    names: tuple[str, ...]
    """[k], first LOSS and TOKENS."""
    totals: torch.Tensor
    """[k] float64. LOSS is the sum of weighted losses; all others are sums over the tokens in the loss."""
    maxima: torch.Tensor
    """[k] float64, the largest value of a single token."""

    @staticmethod
    def zero(columns: tuple[str, ...], device: torch.device) -> "MetricAccumulator":
        """All zeros. `columns`: names of metrics in addition to LOSS and TOKENS."""
        names = (LOSS, TOKENS, *columns)
        return MetricAccumulator(names, *torch.zeros(2, len(names), dtype=torch.float64, device=device))

    @staticmethod
    @torch.no_grad()
    def of(loss: torch.Tensor, mask: torch.Tensor, columns: Mapping[str, torch.Tensor]) -> "MetricAccumulator":
        """One micro-batch. `loss`: its weighted sum, a scalar. `mask` and columns: [t]; columns are 0 outside the mask, and their maxima are valid
        only if they are not negative."""
        values = torch.stack([mask, *columns.values()]).double()
        totals = torch.cat((loss.double()[None], values.sum(1)))
        return MetricAccumulator((LOSS, TOKENS, *columns), totals, torch.cat((totals[:1], values.amax(1))))

    def __add__(self, other: "MetricAccumulator") -> "MetricAccumulator":
        return MetricAccumulator(self.names, self.totals + other.totals, torch.maximum(self.maxima, other.maxima))

    def over_world(self, counts: bool) -> "MetricAccumulator":
        """The sum over all ranks with `counts`, on every rank. Collective."""
        totals, maxima = (x.clone() if counts else torch.zeros_like(x) for x in (self.totals, self.maxima))
        dist.all_reduce(totals)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return MetricAccumulator(self.names, totals, maxima)

    def on_host(self) -> "MetricAccumulator":
        """A copy in host memory. Reading numbers from it does not wait for the device."""
        return MetricAccumulator(self.names, self.totals.cpu(), self.maxima.cpu())

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite."""
        return math.isfinite(self[LOSS])

    def __getitem__(self, name: str) -> float:
        return float(self.totals[self.names.index(name)])

    def mean(self, name: str) -> float:
        """Mean per token; NaN when no token is in the loss, for example because every response was truncated and filtered."""
        return self[name] / self[TOKENS] if self[TOKENS] else math.nan

    def max(self, name: str) -> float:
        """Largest value of a single token."""
        return float(self.maxima[self.names.index(name)])
