"""What a network learns from a step. The engine is given one, and knows nothing else of it.

To add one: subclass Objective, say what has to be measured before the first update and what the loss of a token is, and let a task build the engine
with it. docs/architecture.md has an example.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch

from rljob_trainer.batch import Batch
from rljob_trainer.objectives.metrics import MetricAccumulator
from rljob_trainer.objectives.tokens import Predictions, Sequences

Column = Literal["old_log_probs", "reference_log_probs", "values"]
"""What the engine can measure in forward passes: of the policy before the step's first update, of its reference, of the critic."""


class UserFile(NamedTuple):
    """A Python file of the job."""

    field: str
    """Of the spec, that names it."""
    path: str
    digest: str
    """sha256 of what was loaded."""


class Output(Protocol):
    """What a network says of the tokens of a micro-batch."""

    def predictions(self, temperature: float, candidates: torch.Tensor | None = None) -> Predictions:
        """Of a language model; `candidates`: [t, K], ids of further tokens at each place. To be called once."""
        ...

    def values(self) -> torch.Tensor:
        """[t], of a value model."""
        ...


class MeasuredStep(Protocol):
    """A step whose fixed quantities have been measured."""

    batch: Batch
    """Columns of all trajectories, with the rewards of reward models; trajectories of this rank only."""

    def gather(self, name: str) -> list[torch.Tensor]:
        """A column of every trajectory, [response tokens] each in float32, on every rank. Collective."""
        ...

    def learnt(self) -> list[torch.Tensor]:
        """Likewise 1 for tokens that are learnt from, 0 for an environment's. Collective."""
        ...


@dataclass(frozen=True, slots=True)
class Targets:
    """What networks are taught of a step, made of the whole step on every rank alike."""

    columns: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    """By name, per trajectory [response tokens]: columns for `Objective.loss`."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """All [t]."""

    loss: torch.Tensor
    """To be multiplied with the tokens' weights and summed. With gradients; 0 where nothing is learnt."""
    mask: torch.Tensor
    """1 for tokens that are learnt from; means of what is measured are over these."""
    token_metrics: Mapping[str, torch.Tensor]
    """Objective.token_metrics, without gradients and 0 outside the mask: they are summed over tokens, micro-batches and ranks."""


class Objective:
    """Of one network."""

    prefix: str
    """Of its metrics, such as `train`."""
    needs: frozenset[Column] = frozenset()
    """Columns that are measured before the first update."""
    token_metrics: tuple[str, ...] = ()
    """What `loss` measures per token."""
    temperature: float = 1.0
    """At which log-probabilities are taken."""
    pairs: bool = False
    """Whether the trajectories of a group lie behind each other in one micro-batch."""
    scores: bool = False
    """Whether the network is a value model, which is asked for the worth of what it has read up to each token; else a language model, which
    is asked for the probability of each token."""
    critic: "Objective | None" = None
    """What the critic learns from the same step; with `values` in `needs`."""
    files: tuple[UserFile, ...] = ()
    """Of the job, that the objective is made of: every rank must have read the same."""

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        """Of the tokens of a micro-batch. `columns`: what was measured, what `advantages` made, and of the
        trajectories `mask`, `rollout_log_probs` and `age` (trained steps since the policy that wrote the token) [t]."""
        raise NotImplementedError

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        """What the loss of every token of each trajectory of a mini-batch counts: [n] for trajectories of so many learnt tokens."""
        raise NotImplementedError

    def advantages(self, step: MeasuredStep) -> Targets:
        """What the whole step teaches. Collective where it gathers."""
        return Targets()

    def learns(self, step: int) -> bool:
        """Whether the network is updated in this step of the job; else its loss is only measured."""
        return True

    def check(self, sums: MetricAccumulator, update: int) -> None:
        """Before the optimizer step number `update` of the step, from 0. Raises to stop it."""

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        """Of all updates of a step, under full names; in addition to those of the optimizer."""
        raise NotImplementedError

    def after(self, metrics: Mapping[str, float], trajectories: int) -> None:
        """The step has been learnt."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
