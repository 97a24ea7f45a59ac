"""Episodes and tokens that tests write down in a line. All responses of such episodes have equally many tokens, and one rank has them all."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm import advantages
from rljob_trainer.algorithm.advantages import Advantages
from rljob_trainer.algorithm.episodes import Episodes
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns

Rows = Sequence[Sequence[float]]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def algorithm(**fields: Any) -> AlgorithmSpec:
    """camelCase, as in a manifest."""
    return AlgorithmSpec.model_validate(fields)


def episodes(
    rewards: Sequence[float],
    groups: Sequence[int] | None = None,
    mask: Rows | None = None,
    token_rewards: Rows | None = None,
    values: Rows | None = None,
    baselines: Sequence[float] | None = None,
    turn_rewards: Rows | None = None,
    trajectories: Sequence[int] | None = None,
) -> Episodes:
    """One group and one token each unless something else is said."""
    chosen = tensor(mask if mask is not None else [[1.0]] * len(rewards))
    return Episodes(
        tensor(rewards),
        torch.tensor(groups if groups is not None else [0] * len(rewards)),
        torch.full((len(rewards),), chosen.shape[1]),
        chosen.flatten(),
        torch.zeros_like(chosen.flatten()) if token_rewards is None else tensor(token_rewards).flatten(),
        None if values is None else tensor(values).flatten(),
        None if baselines is None else tensor(baselines),
        turn_rewards=None if turn_rewards is None else tensor(turn_rewards).flatten(),
        trajectories=None if trajectories is None else torch.tensor(trajectories),
    )


def table(given: Episodes, values: torch.Tensor) -> torch.Tensor:
    """Values of tokens, one row for each response."""
    return values.view(len(given.rewards), -1)


def taken(given: Episodes, order: Sequence[int]) -> Episodes:
    """The episodes with the responses of these numbers, in this order."""
    held = {f.name: getattr(given, f.name) for f in fields(given)}
    tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    return replace(given, **{name: table(given, value)[list(order)].flatten() for name, value in tensors.items()})


def estimate(given: Episodes, **fields: Any) -> Advantages:
    """The result has one row for each response."""
    spec = algorithm(**fields)
    found = advantages.estimate(given, spec, advantages.ADVANTAGES[spec.advantage])
    return Advantages(*(None if x is None else table(given, x) for x in (found.advantages, found.returns)))


def of_responses(given: Episodes, **fields: Any) -> list[float]:
    """The advantage of each response's first token."""
    return estimate(given, **fields).advantages[:, 0].tolist()


def columns(**given: Any) -> TokenColumns:
    """Tokens at old = rollout = new log-probabilities of -1, advantage 1, no entropy and no reference, but for what is given."""
    count = max(len(v) for v in given.values())
    found = {name: v if isinstance(v, torch.Tensor) else tensor(v) for name, v in given.items()}
    fixed = {
        "log_probs": torch.full((count,), -1.0, dtype=torch.float64),
        "entropy": torch.zeros(count, dtype=torch.float64),
        "old_log_probs": torch.full((count,), -1.0, dtype=torch.float64),
        "rollout_log_probs": torch.full((count,), -1.0, dtype=torch.float64),
        "reference_log_probs": None,
        "teacher_log_probs": None,
        "advantages": torch.ones(count, dtype=torch.float64),
        "mask": torch.ones(count, dtype=torch.float64),
    }
    return TokenColumns(**fixed | found)


def responses(*lengths: int, padding: int = 0) -> Sequences:
    """Behind each other, padding last."""
    index = [i for i, n in enumerate((*lengths, padding)) for _ in range(n)]
    return Sequences(torch.tensor(index, dtype=torch.long), len(lengths))
