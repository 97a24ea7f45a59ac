"""What a mini-batch measured, as sums that can be added over micro-batches, ranks and mini-batches in any cut."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from rljob_trainer.algorithm.objective import Terms
from rljob_trainer.megatron.batching import MicroBatch

NAMES = ("loss", "tokens", "kl", "entropy", "clipped", "ratio", "difference")


@dataclass(frozen=True, slots=True)
class Sums:
    """`totals` [7], float64, in the order of NAMES: the loss is normalised already, the others are sums over response tokens.
    `worst`: the largest |train - rollout| log-probability."""

    totals: torch.Tensor
    worst: torch.Tensor

    @staticmethod
    def zero(device: torch.device) -> "Sums":
        return Sums(
            torch.zeros(len(NAMES), dtype=torch.float64, device=device),
            torch.zeros((), dtype=torch.float64, device=device),
        )

    @staticmethod
    @torch.no_grad()
    def of(
        loss: torch.Tensor, terms: Terms, entropy: torch.Tensor, old_log_probs: torch.Tensor, micro: MicroBatch
    ) -> "Sums":
        mask = micro.mask.double()
        difference = (old_log_probs.double() - micro.rollout_log_probs.double()).abs() * mask
        totals = [
            loss.double(),
            mask.sum(),
            *((x.double() * mask).sum() for x in (terms.kl, entropy, terms.clipped, terms.ratio)),
            difference.sum(),
        ]
        return Sums(torch.stack(totals), difference.max())

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.totals + other.totals, torch.maximum(self.worst, other.worst))

    def over_world(self, counts: bool) -> "Sums":
        """The sum over all ranks that count; the same on every rank. Collective."""
        totals, worst = (x.clone() if counts else torch.zeros_like(x) for x in (self.totals, self.worst))
        dist.all_reduce(totals)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return Sums(totals, worst)

    def __getitem__(self, name: str) -> float:
        return float(self.totals[NAMES.index(name)])

    def mean(self, name: str) -> float:
        """Per response token."""
        return self[name] / max(1.0, self["tokens"])
