"""Functions of a job's own for advantages and losses: a Python file that every rank reads, calls, and holds to what a formula must return."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from rljob_api.spec.algorithm import AlgorithmFunction, AlgorithmSpec, Clip
from rljob_trainer.failure import ConfigurationError, is_lost_peer
from rljob_trainer.objectives.advantages import ADVANTAGES, Advantages, Episodes, Estimator
from rljob_trainer.objectives.losses import LARGEST_LOG_RATIO, LOSSES, LossFunction, PolicyLoss
from rljob_trainer.objectives.objective import UserFile
from rljob_trainer.objectives.tokens import Sequences, TokenColumns
from rljob_trainer.user_code import explain


@dataclass(frozen=True)
class UserFunction:
    """A function that `field` of the spec names, ready to be called."""

    field: str
    spec: AlgorithmFunction
    call: Callable[..., Any]
    digest: str
    """sha256 of the file as it was loaded."""

    @staticmethod
    def load(field: str, spec: AlgorithmFunction, takes: int) -> "UserFunction":
        """Import the file alone: what lies next to it is not importable, since only this file is compared between ranks.

        `takes`: values that the function is called with, before the spec's arguments.

        Raises ConfigurationError when the file is missing, cannot be imported, or has no function that takes these.
        """
        try:
            content = Path(spec.path).read_bytes()
        except FileNotFoundError as error:
            fix = "correct the path, or mount the ConfigMap or volume that holds the file in spec.volumes"
            raise ConfigurationError(f"{field}.path", spec.path, "there is no such file in this pod", fix) from error
        with blamed(field, spec):
            function = getattr(_module(field, spec.path, content), spec.function)
            inspect.signature(function).bind(*[None] * takes, **spec.arguments)
        return UserFunction(field, spec, function, hashlib.sha256(content).hexdigest())

    def __call__(self, *given: Any) -> tuple[Any, Any]:
        """What it returns; one value alone is the first. Raises ConfigurationError for what the function raises."""
        with blamed(self.field, self.spec):
            found = self.call(*given, **self.spec.arguments)
        return found if isinstance(found, tuple) and len(found) == 2 else (found, None)

    @property
    def file(self) -> UserFile:
        return UserFile(f"{self.field}.path", self.spec.path, self.digest)

    def tensor(self, name: str, found: Any, like: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What was returned as `name`, in the type of `like` and 0 outside the mask. Raises ConfigurationError for what is not of its shape."""
        shape = list(like.shape)
        if not isinstance(found, torch.Tensor) or list(found.shape) != shape:
            what = f"a tensor {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise self.wrong(f"returned {what} as {name}; it is a tensor {shape}, one number for each token")
        return torch.where(mask > 0, found.to(like), 0.0)

    def wrong(self, what: str) -> ConfigurationError:
        rule = f"{self.spec.function}() in {Path(self.spec.path).name} {what}"
        return ConfigurationError(f"{self.field}.path", self.spec.path, rule, "fix the function")


def advantages_of(function: UserFunction, episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """What `algorithm.advantageFunction` makes of a step, in float64. Raises ConfigurationError for what cannot be learnt from."""
    found, returns = function(episodes)
    advantages = function.tensor("advantages", found, episodes.mask, episodes.mask)
    if not advantages.isfinite().all():
        raise function.wrong("returned an advantage that is not a finite number")
    if episodes.values is None:
        return Advantages(advantages)
    return Advantages(
        advantages, function.tensor("returns, which the critic learns", returns, episodes.mask, episodes.mask)
    )


def loss_of(function: UserFunction, tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """What `algorithm.lossFunction` makes of the tokens of a micro-batch. Raises ConfigurationError for what cannot be learnt from."""
    found, clipped = function(tokens, sequences)
    loss = function.tensor("loss", found, tokens.log_probs, tokens.mask)
    if tokens.log_probs.requires_grad and not loss.requires_grad:
        raise function.wrong(
            "returned a loss that does not depend on tokens.log_probs, so that nothing would be learnt"
        )
    none = torch.zeros_like(tokens.mask)
    ratio = (tokens.log_probs.detach() - tokens.old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    return PolicyLoss(loss, ratio, none if clipped is None else function.tensor("clipped", clipped, none, tokens.mask))


@dataclass(frozen=True)
class Formulas:
    """What spec.algorithm computes with: formulas of ours, or functions of the job's own."""

    advantages: Estimator
    loss: LossFunction
    files: tuple[UserFile, ...]
    """What was loaded."""

    @staticmethod
    def of(algorithm: AlgorithmSpec) -> "Formulas":
        """Raises ConfigurationError for a file that cannot be loaded."""
        estimator = _loaded("advantageFunction", algorithm.advantage_function, takes=1)
        function = _loaded("lossFunction", algorithm.loss_function, takes=2)
        return Formulas(
            partial(advantages_of, estimator) if estimator else ADVANTAGES[algorithm.advantage],
            partial(loss_of, function) if function else LOSSES[algorithm.loss],
            tuple(f.file for f in (estimator, function) if f),
        )


def _loaded(field: str, given: AlgorithmFunction | None, takes: int) -> UserFunction | None:
    return None if given is None else UserFunction.load(f"spec.algorithm.{field}", given, takes)


@contextmanager
def blamed(field: str, spec: AlgorithmFunction) -> Iterator[None]:
    """Raises ConfigurationError, with file and line, for whatever the user's code raises; not for peers that are gone, nor for memory
    that ran out."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if is_lost_peer(type(error).__name__, str(error)):
            raise
        fix = "fix the file; it is imported alone, with the packages of the image"
        raise ConfigurationError(f"{field}.path", spec.path, explain(error, spec.path, spec.function), fix) from error


def _module(field: str, path: str, content: bytes) -> ModuleType:
    module = ModuleType(f"rljob_user_{field.rpartition('.')[2]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look it up
    exec(compile(content, path, "exec"), module.__dict__)
    return module
