"""What a client of `task: service` has the ranks do, one piece of work at a time, and what comes of it. No torch here.

The gateway numbers the work of each client's model, `seq`, writes it down, and hands it out in that order. The driver passes bodies on as they are
(gateway.py): from the gateway to rank 0, which broadcasts them to all ranks, and the results back. Only gateway and ranks read them. A rank keeps
nothing across attempts: after a restart the gateway has models created and loaded again, and repeats what they had learnt since. The fence is that
of every attempt: rank 0 talks to the driver of its own attempt over a socket, and that driver shows the gateway token and attempt.

Work that a client got wrong (a loss without its columns, say) fails alone: its result is a Failure of the category `user`, the model is as it was,
and the next piece follows. Anything else that goes wrong on a rank ends the attempt, as for every task.

Within the bounds below the ranks only compute: torch raises for a scalar outside float32, which would end the attempt, and the next one too, since it
repeats the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.calls import TaskOutcome
from rljob_trainer.wire.trajectory import Floats, Ints

MOST_TARGETS = 128
"""Targets at one position."""
LARGEST_NUMBER = 1e20
"""Of a scalar's magnitude: Adam's bias correction multiplies a learning rate by up to 1e16, and the product has to fit into float32."""
SMALLEST_EPSILON = 1e-30
"""Of AdamW. A smaller one rounds to 0 in float32, and a weight without a gradient becomes 0 / 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Datum:
    """One sequence of N tokens, each of which has a target, or K of them. Its targets need not be the next tokens."""

    tokens: Ints
    """[N] int32"""
    targets: npt.NDArray[np.int64]
    """[N] or [N, K] int64. The log-probabilities of targets[i] are those that the model predicts after tokens[: i + 1]."""
    columns: Mapping[str, Floats] = field(default_factory=dict)
    """By name, of the shape of `targets`: float32, what the loss asks for: `weights`, `logprobs`, `advantages`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    model: str
    """The client's model: the gateway's name for it."""
    seq: int
    """Number of the work among that of its model, from 0, its creation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateModel(_Work):
    """Make adapters for a client: A from `seed`, the same in every layout, and B = 0; scaled by 32 / rank, as Tinker's. Or begin to train all
    parameters, from those of the base model."""

    rank: int
    """From 1 to spec.service.maxRank; 0 where that is 0: all parameters."""
    seed: int
    mlp: bool = True
    attention: bool = True
    unembed: bool = False
    """The output layer; refused, until servers can have adapters for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepModels:
    """Forget all other models. Their files remain."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward(_Work):
    """Measure log-probabilities, and add the gradient of the loss, a sum over tokens, to what the model has accumulated since its last step."""

    data: tuple[Datum, ...]
    loss: str
    """`cross_entropy`, `importance_sampling`, `ppo`, `cispo`, `dro` or `gspo`; the ranks refuse others."""
    config: Mapping[str, float] = field(default_factory=dict)
    """Of the loss: `clip_low_threshold`, `clip_high_threshold`, `beta`."""
    forward_only: bool = False
    """Accumulate nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStep(_Work):
    """One step of AdamW with the accumulated gradient, which is zero afterwards, as it is where nothing was accumulated. A gradient that is not
    finite is dropped, and the work refused."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    """Above 0."""
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """The largest norm of the gradient; 0: it is not clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState(_Work):
    """Write the model, with its optimizer's state and without gradients, into the new directory `path`, durable once it is there."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState(_Work):
    """Continue from what SaveState wrote, in any layout, also under another name. It drops accumulated gradients.

    The rank and the targets are those that the model was created with, and have to be those of the files.
    """

    path: str
    optimizer: bool
    """With the optimizer's state; else as if no step had been made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveForSampler(_Work):
    """Write the adapters into the new directory `path`, in the format of the peft library, with rollout_server.DIGEST, durable once
    it is there. Where all parameters are trained: the model as a Hugging Face directory, from which ServePolicy has servers updated."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePolicy:
    """Have rollout servers serve a whole model by an update of their weights, of which each serves one at a time."""

    path: str
    """What SaveForSampler wrote, or the directory of the base model."""
    step: int
    """What servers call it."""
    servers: tuple[Mapping[str, str], ...]
    """RolloutEndpoints as JSON."""


ModelWork = CreateModel | ForwardBackward | OptimStep | SaveState | LoadState | SaveForSampler
Work = ModelWork | KeepModels | ServePolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkResult:
    """What came of a piece of work."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """By name and reduction. ForwardBackward: `loss:sum`. OptimStep: `grad_norm:mean`, before clipping."""
    log_probs: tuple[Floats, ...] = ()
    """ForwardBackward: for each datum those of its targets, of their shape, under the model before any of it."""
    served: tuple[str, ...] = ()
    """ServePolicy: UIDs of the pods that serve it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """ServePolicy: by UID of a pod that has answered and does not serve it: why. A pod in neither could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFailure:
    """Work that was refused. The model is as it was before; an OptimStep whose gradient is not finite has dropped it."""

    message: str
    category: Literal["user", "server"] = "user"


class RefusedWork(ValueError):
    """Work that its client got wrong: its result is a Failure with this message."""

    category: Literal["user", "server"] = "user"


class TemporaryFailure(RefusedWork):
    """Work that cannot be done now, and perhaps can soon."""

    category = "server"


class NextWork(TypedDict, total=False):
    """The next piece of work, or what there is instead of it; empty: nothing yet, ask again."""

    work: int
    """Bytes of its body, which follows as one array of uint8."""
    over: TaskOutcome
    """No work will come any more."""


class ServiceCalls(ABC):
    """Calls of the trainer's rank 0 to the driver. `heartbeat` and `awaiting` are notices, which have no answer (calls.py)."""

    @abstractmethod
    def heartbeat(self, count: int) -> None:
        """See DriverCalls.heartbeat."""

    @abstractmethod
    def awaiting(self, what: str) -> None:
        """See DriverCalls.awaiting."""

    @abstractmethod
    async def ready(self, backend: str) -> None:
        """The base model is loaded; no client has a model yet. `backend`: what the trainer computes with, for the report."""

    @abstractmethod
    async def next(self) -> NextWork:
        """The next piece of work, or what there is instead of it, within about a second."""

    @abstractmethod
    async def done(self, arrays: dict[str, Array]) -> None:
        """The last piece is done. `arrays`: `result`, the body [bytes] uint8 of a Result or a Failure."""

    @abstractmethod
    async def end(self) -> None:
        """The ranks have heard that the job is over."""


def require_numbers(work: OptimStep) -> None:
    """Raises RefusedWork for the first number that AdamW does not take."""
    bounds = {
        "learning_rate": (work.learning_rate >= 0, "at least 0"),
        "beta1": (0 <= work.beta1 < 1, "at least 0 and below 1"),
        "beta2": (0 <= work.beta2 < 1, "at least 0 and below 1"),
        "eps": (work.eps >= SMALLEST_EPSILON, f"at least {SMALLEST_EPSILON:g}"),
        "weight_decay": (work.weight_decay >= 0, "at least 0"),
        "grad_clip_norm": (work.grad_clip_norm >= 0, "at least 0"),
    }
    for name, (holds, rule) in bounds.items():
        value = getattr(work, name)
        if not (holds and value <= LARGEST_NUMBER):
            raise RefusedWork(
                f"{name} is {value}, which AdamW does not take: it must be {rule}, and at most {LARGEST_NUMBER:g}"
            )
