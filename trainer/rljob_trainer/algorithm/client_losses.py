"""Losses of a service's clients, by the names of the Tinker API: sums over tokens, which a client normalises through its weights or advantages.

They are not those of losses.py: no log ratio is clamped, and nothing is divided. With r = exp(log p - logprobs), r' = clip(r, low, high):

cross_entropy        -w log p
importance_sampling  -r A
ppo                  -min(r A, r' A)
cispo                -sg(r') A log p
dro                  -(A log p - beta / 2 (log p - logprobs)^2)
gspo                 ppo with s = exp(mean over the sequence of log p - logprobs) in place of r, whose gradient is that of each token's log p

`low` and `high` are bounds of the ratio, numbers in the loss's configuration or columns of the data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.wire.service import LARGEST_NUMBER, MOST_TARGETS, Datum, ForwardBackward, RefusedWork

LossColumns = Mapping[str, torch.Tensor]
Config = Mapping[str, float]
ClientLossFunction = Callable[[torch.Tensor, LossColumns, Config, Sequences], torch.Tensor]
"""Of the log-probabilities [t, K] of targets, with gradients, and of columns [t, K] -> the loss of each [t, K]."""

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
DEFAULTS = {LOW: 0.8, HIGH: 1.2, "beta": 0.05}


def cross_entropy(log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences) -> torch.Tensor:
    return -columns["weights"] * log_probs


def importance_sampling(
    log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences
) -> torch.Tensor:
    return -_ratio(log_probs, columns) * columns["advantages"]


def ppo(log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences) -> torch.Tensor:
    return _clipped(_ratio(log_probs, columns), columns, config)


def cispo(log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences) -> torch.Tensor:
    ratio = _between(_ratio(log_probs.detach(), columns), columns, config)
    return -ratio * columns["advantages"] * log_probs


def dro(log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences) -> torch.Tensor:
    beta = config.get("beta", DEFAULTS["beta"])
    return 0.5 * beta * (log_probs - columns["logprobs"]) ** 2 - columns["advantages"] * log_probs


def gspo(log_probs: torch.Tensor, columns: LossColumns, config: Config, sequences: Sequences) -> torch.Tensor:
    """[t, 1] only. Zheng et al. 2025, arXiv 2507.18071, GSPO-token."""
    fixed = log_probs.detach()
    mask = (columns["sequence_ratio_mask"] != 0).to(fixed)
    _, mean = sequences.sum_and_mean((fixed - columns["logprobs"])[:, 0], mask[:, 0])
    return _clipped((mean[:, None] + log_probs - fixed).exp(), columns, config)


@dataclass(frozen=True, slots=True)
class ClientLoss:
    """A loss, and what it reads."""

    function: ClientLossFunction
    needs: tuple[str, ...]
    """Columns that every datum has."""
    settings: tuple[str, ...] = ()
    """What its configuration may have."""
    targets: int = MOST_TARGETS
    """Most targets at one position."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a datum may have."""
        return (*self.needs, *(name for name in (LOW, HIGH) if name in self.settings))


_RATIO = ("logprobs", "advantages")
LOSSES = {
    "cross_entropy": ClientLoss(cross_entropy, ("weights",)),
    "importance_sampling": ClientLoss(importance_sampling, _RATIO),
    "ppo": ClientLoss(ppo, _RATIO, (LOW, HIGH)),
    "cispo": ClientLoss(cispo, _RATIO, (LOW, HIGH)),
    "dro": ClientLoss(dro, _RATIO, ("beta",)),
    "gspo": ClientLoss(gspo, (*_RATIO, "sequence_ratio_mask"), (LOW, HIGH), targets=1),
}


def loss_of(work: ForwardBackward, vocabulary: int) -> ClientLoss:
    """The work's loss. Raises RefusedWork, with the first thing that is wrong with the work: all of its data must be what the loss reads."""
    chosen = LOSSES.get(work.loss)
    if chosen is None:
        raise RefusedWork(f"the loss {work.loss} is not served: choose one of {', '.join(LOSSES)}")
    unknown = set(work.config) - set(chosen.settings)
    if unknown:
        raise RefusedWork(f"the loss {work.loss} reads no {min(unknown)} in its configuration")
    bad = [name for name, value in work.config.items() if not abs(value) <= LARGEST_NUMBER]
    if bad:
        bounds = f"from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"
        raise RefusedWork(f"{bad[0]} is {work.config[bad[0]]}; the loss {work.loss} takes numbers {bounds}")
    if not work.data:
        raise RefusedWork("there is no datum")
    for number, datum in enumerate(work.data):
        for wrong in _wrong(datum, chosen, vocabulary):
            raise RefusedWork(f"datum {number}: {wrong}")
        further = set(datum.columns) ^ set(work.data[0].columns)
        if further:
            raise RefusedWork(f"datum {number}: {min(further)} must be in all data or in none")
    return chosen


@torch.no_grad()
def total(chosen: ClientLoss, work: ForwardBackward, log_probs: tuple[np.ndarray, ...]) -> float:
    """The loss of the work, from the log-probabilities of its targets: the same whatever layout measured them."""
    columns = {name: _joined([datum.columns[name] for datum in work.data]) for name in work.data[0].columns}
    sizes = torch.tensor([values.size for values in log_probs])
    sequences = Sequences(torch.arange(len(sizes)).repeat_interleave(sizes), len(sizes))
    return float(chosen.function(_joined(log_probs), columns, work.config, sequences).sum())


def _joined(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    """Those of all data, one after another: [values, 1] float64."""
    return torch.from_numpy(np.concatenate([values.ravel() for values in arrays])).double()[:, None]


def _wrong(datum: Datum, chosen: ClientLoss, vocabulary: int) -> Iterator[str]:
    """What keeps the loss from reading the datum."""
    tokens, targets = datum.tokens, datum.targets
    if tokens.ndim != 1 or not len(tokens):
        yield "it has no tokens"
    if targets.ndim not in (1, 2) or len(targets) != len(tokens) or not targets.size:
        yield f"its targets have the shape {targets.shape}, where its {len(tokens)} tokens need one or several each"
    elif targets.ndim == 2 and targets.shape[1] > chosen.targets:
        yield f"it has {targets.shape[1]} targets at each position, and the loss takes {chosen.targets}"
    for name, ids in (("tokens", tokens), ("targets", targets)):
        if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary):
            yield f"its {name} are not all within the model's vocabulary of {vocabulary}"
    missing = set(chosen.needs) - set(datum.columns)
    if missing:
        yield f"it has no {min(missing)}, which the loss reads"
    unknown = set(datum.columns) - set(chosen.columns)
    if unknown:
        yield f"it has {min(unknown)}, which the loss does not read"
    for name, column in datum.columns.items():
        if column.shape != targets.shape:
            yield f"its {name} have the shape {column.shape}, and its targets {targets.shape}"
        elif not np.isfinite(column).all():
            yield f"its {name} are not all finite"


def _ratio(log_probs: torch.Tensor, columns: LossColumns) -> torch.Tensor:
    return (log_probs - columns["logprobs"]).exp()


def _clipped(ratio: torch.Tensor, columns: LossColumns, config: Config) -> torch.Tensor:
    advantages = columns["advantages"]
    return -torch.minimum(ratio * advantages, _between(ratio, columns, config) * advantages)


def _between(ratio: torch.Tensor, columns: LossColumns, config: Config) -> torch.Tensor:
    low, high = (columns.get(n, torch.full_like(ratio, config.get(n, DEFAULTS[n]))) for n in (LOW, HIGH))
    return ratio.clamp(low, high)
