"""Advantages and losses from a user's Python file, which every rank loads. What they return is checked."""

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
from rljob_trainer.algorithm.advantages import ADVANTAGES, Advantages, Estimator
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.losses import LARGEST_LOG_RATIO, LOSSES, LossFunction, PolicyLoss
from rljob_trainer.algorithm.objective import UserFile
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns
from rljob_trainer.failure import ConfigurationError, is_lost_peer
from rljob_trainer.user_code import explain


@dataclass(frozen=True)
class UserFunction:
    """A user's function, which `field` of the spec names."""

    field: str
    spec: AlgorithmFunction
    call: Callable[..., Any]
    digest: str
    """sha256 of the file as it was loaded."""

    @staticmethod
    def load(field: str, spec: AlgorithmFunction, takes: int) -> "UserFunction":
        """Import the file. Modules next to it cannot be imported, because only this file is compared between ranks.

        `takes`: number of positional arguments that the function is called with, before those of the spec.

        Raises ConfigurationError when the file is missing, cannot be imported, or has no function that takes these arguments.
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
        """Call the function. Returns its two values; if it returns only one, the second is None. Raises ConfigurationError for whatever it raises."""
        with blamed(self.field, self.spec):
            returned = self.call(*given, **self.spec.arguments)
        return returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)

    @property
    def file(self) -> UserFile:
        return UserFile(f"{self.field}.path", self.spec.path, self.digest)

    def tensor(self, name: str, returned: Any, like: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """A returned value as a tensor of the type of `like`, 0 outside the mask. Raises ConfigurationError, with `name`, for another shape or
        type."""
        shape = list(like.shape)
        if not isinstance(returned, torch.Tensor) or list(returned.shape) != shape:
            what = f"a tensor {list(returned.shape)}" if isinstance(returned, torch.Tensor) else type(returned).__name__
            raise self.wrong(f"returned {what} as {name}; it is a tensor {shape}, one number for each token")
        return torch.where(mask > 0, returned.to(like), 0.0)

    def wrong(self, what: str) -> ConfigurationError:
        rule = f"{self.spec.function}() in {Path(self.spec.path).name} {what}"
        return ConfigurationError(f"{self.field}.path", self.spec.path, rule, "fix the function")


def advantages_of(function: UserFunction, episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """The result of `algorithm.advantageFunction` for a step, in float64. Raises ConfigurationError for a wrong shape, or, on every rank, for a value
    that is not finite. Collective."""
    returned, returns = function(episodes)
    advantages = function.tensor("advantages", returned, episodes.mask, episodes.mask)
    if episodes.total((~advantages.isfinite()).double()).any():
        raise function.wrong("returned an advantage that is not a finite number")
    if episodes.values is None:
        return Advantages(advantages)
    return Advantages(
        advantages, function.tensor("returns, which the critic learns", returns, episodes.mask, episodes.mask)
    )


def loss_of(function: UserFunction, tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """The result of `algorithm.lossFunction` for a micro-batch. Raises ConfigurationError for a wrong shape, or a loss without gradients."""
    returned, clipped = function(tokens, sequences)
    loss = function.tensor("loss", returned, tokens.log_probs, tokens.mask)
    if tokens.log_probs.requires_grad and not loss.requires_grad:
        raise function.wrong(
            "returned a loss that does not depend on tokens.log_probs, so that nothing would be learnt"
        )
    none = torch.zeros_like(tokens.mask)
    ratio = (tokens.log_probs.detach() - tokens.old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    return PolicyLoss(loss, ratio, none if clipped is None else function.tensor("clipped", clipped, none, tokens.mask))


@dataclass(frozen=True)
class Formulas:
    """The advantage estimator and the policy loss of spec.algorithm: built-in ones, or the user's functions."""

    advantages: Estimator
    loss: LossFunction
    files: tuple[UserFile, ...]
    """The user's files that were loaded."""

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
    """A context that turns what the user's code raises into a ConfigurationError with file and line; except for a lost peer and for exhausted device
    memory, which are not the code's fault."""
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
