"""The interface of objectives: what a network learns from a step. It is all that the engine knows of a task.

To add one: subclass Objective, say what has to be measured before the first update and what the loss of a token is, and have a task build the engine
with it (rank/tasks.py). docs/architecture.md says more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist

from rljob_trainer.algorithm.tokens import Predictions, Sequences
from rljob_trainer.wire.batch import Batch

LOSS, TOKENS = "loss", "tokens"
Column = Literal["old_log_probs", "reference_log_probs", "values"]
"""Columns that the engine can measure in forward passes: of the policy before the step's first update, of the reference, and of the critic."""


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


class UserFile(NamedTuple):
    """A Python file of the user."""

    field: str
    """Field of the spec that names it."""
    path: str
    digest: str
    """sha256 of the content that was loaded."""


class Output(Protocol):
    """A network's output for the t tokens of a micro-batch."""

    def predictions(self, temperature: float, candidates: torch.Tensor | None = None) -> Predictions:
        """Predictions of a language model, 0 outside of the column `mask`. `candidates`: [t, K], ids of further tokens at each position. Must be
        called once only: the backward pass overwrites the logits."""
        ...

    def values(self) -> torch.Tensor:
        """[t], values of a value model."""
        ...


class MeasuredStep(Protocol):
    """A step after Engine.measure. A rank has the tokens of its own rows, those that its data-parallel copy trains; t are their response tokens, one
    row after another."""

    batch: Batch
    """Columns of all rows, including the scores of reward models; trajectories of this rank only."""

    @property
    def rows(self) -> Sequence[int]:
        """This rank's own rows, ascending: some of those with a response. Every such row belongs to one data-parallel copy."""
        ...

    def own(self, name: str) -> torch.Tensor:
        """[t], a per-token column of the own rows in float32, on all ranks of the data-parallel copy. Collective."""
        ...

    def learnt(self) -> torch.Tensor:
        """[t] float32, 1 for tokens in the loss, 0 for those of an environment."""
        ...

    def by_row(self, values: torch.Tensor) -> dict[int, torch.Tensor]:
        """[t] -> [own row] -> [its response tokens]."""
        ...

    def over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """One number for each row with a response, from the ranks that have the row; others pass 0. Float64, on the CPU, the same bits on every rank
        in every layout. Collective."""
        ...


@dataclass(frozen=True, slots=True)
class Targets:
    """What Objective.advantages computes from a step."""

    columns: Mapping[str, Mapping[int, torch.Tensor]] = field(default_factory=dict)
    """[name] -> [own row] -> [response tokens], additional columns for `Objective.loss`. The names are the same on every rank."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The same on every rank."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token of a micro-batch. All [t]."""

    loss: torch.Tensor
    """To be multiplied by the loss weights and summed. With gradients; 0 for tokens without loss."""
    mask: torch.Tensor
    """1 for tokens in the loss, over which means of metrics are taken."""
    token_metrics: Mapping[str, torch.Tensor]
    """The metrics of Objective.token_metrics, without gradients and 0 outside the mask. They are summed over tokens, micro-batches and ranks."""
    old_log_probs: torch.Tensor | None = None
    """Log-probabilities under the policy before the step's first update, without gradients; NaN outside the mask, where they are not computed.
    None: the objective has none that anybody looks at."""


class Objective:
    """The objective of one network."""

    prefix: str
    """Prefix of its metrics, such as `train`."""
    needs: frozenset[Column] = frozenset()
    """Columns that must be measured before the first update."""
    token_metrics: tuple[str, ...] = ()
    """Names of the per-token metrics that `loss` returns."""
    temperature: float = 1.0
    """Temperature at which log-probabilities are computed."""
    pairs: bool = False
    """Whether the rows of a group must be adjacent in one micro-batch."""
    scores: bool = False
    """Whether the network is a value model, with a value for every token that it reads; otherwise it is a language model."""
    critic: "Objective | None" = None
    """The critic's objective for the same step; then `values` is in `needs`."""
    files: tuple[UserFile, ...] = ()
    """Files of the user that the objective uses. Every rank must have loaded the same content."""

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        """The loss of each token of a micro-batch.

        `columns`: [name] -> [t]: what was measured, the columns of `advantages`, and of the trajectories `mask`, `rollout_log_probs` and `age`
        (trained steps since the policy that sampled the token).
        """
        raise NotImplementedError

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        """[n], the weight of the loss of each token of each trajectory of a mini-batch. `counts`: [n], tokens in the loss of each trajectory."""
        raise NotImplementedError

    def advantages(self, step: MeasuredStep) -> Targets:
        """Compute advantages, or other columns for `loss`, from what was measured. Collective if it reads what other ranks have."""
        return Targets()

    def learns(self, step: int) -> bool:
        """Whether the network is updated in this step of the job; otherwise its loss is only measured."""
        return True

    def check(self, sums: MetricAccumulator, update: int) -> None:
        """Called before each optimizer step; `update` counts them from 0 within the step. May raise to prevent it."""

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        """Metrics by their full names, from the sums over all updates of a step. Those of the optimizer are added by the engine."""
        raise NotImplementedError

    def after(self, metrics: Mapping[str, float], trajectories: int) -> None:
        """Called after the last update of a step in which it learns, for example to adapt a coefficient. `trajectories`: their number."""

    def state(self) -> dict[str, Any]:
        """State to save in a checkpoint, JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
