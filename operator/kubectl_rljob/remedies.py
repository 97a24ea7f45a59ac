"""The one field whose change makes a job fit, with its largest value that does."""

from collections.abc import Callable
from typing import NamedTuple

from rljob_api.sizing.layout import Amounts
from rljob_api.sizing.memory import cache_memory, phases
from rljob_api.sizing.replica import server_defaults
from rljob_api.sizing.server_arguments import CACHE, SHARE
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec

TOKENS, SHARES = 1024, 100
"""Tokens of a micro-batch are tried in multiples, and a server's share of a GPU in hundredths."""


class Remedy(NamedTuple):
    """What to set."""

    field: str
    value: str
    """As it is."""
    fix: str


def remedy(spec: RLJobSpec, shape: Shape, device: float) -> Remedy | None:
    """For a job of which a phase does not fit into a GPU of `device` bytes. None: no change of one field is enough."""

    def fits(changed: RLJobSpec) -> bool:
        return all(p.total <= device for p in phases(changed, shape, device))

    def serves(changed: RLJobSpec) -> bool:
        return cache_memory(changed, shape, device).holds_a_sample(changed)

    return _tokens(spec, fits) or _share(spec, fits, serves)


def most_tokens(spec: RLJobSpec, fits: Callable[[RLJobSpec], bool]) -> int | None:
    """Of a micro-batch, fewer than the job's and enough for its longest sample, in multiples of TOKENS. None: no number is enough."""
    amounts = Amounts.of(spec)
    longest = amounts.longest * (amounts.group if spec.paired else 1)
    fewest, less = -(-longest // TOKENS), (spec.train.tokens_per_micro_batch - 1) // TOKENS
    most = _largest(fewest, less, lambda n: fits(_with_tokens(spec, n * TOKENS)))
    return None if most is None else most * TOKENS


def _tokens(spec: RLJobSpec, fits: Callable[[RLJobSpec], bool]) -> Remedy | None:
    most = most_tokens(spec, fits)
    if most is None:
        return None
    fix = f"{most} is the most that fits by the estimate, in multiples of {TOKENS}"
    return Remedy("spec.train.tokensPerMicroBatch", str(spec.train.tokens_per_micro_batch), fix)


def _share(spec: RLJobSpec, fits: Callable[[RLJobSpec], bool], serves: Callable[[RLJobSpec], bool]) -> Remedy | None:
    """Of a colocated server. `serves`: whether it has room for a sample."""
    arguments = server_defaults(spec) | spec.rollout.vllm_args
    if spec.rollout.placement != "colocated" or SHARE not in arguments or CACHE in arguments:
        return None
    most = _largest(1, SHARES - 1, lambda n: fits(_with_share(spec, n / SHARES)))
    if most is None or not serves(_with_share(spec, most / SHARES)):
        return None
    fix = f"{most / SHARES:g} is the most that fits by the estimate"
    return Remedy(f"spec.rollout.vllmArgs.{SHARE}", f"{arguments[SHARE]}", fix)


def _with_tokens(spec: RLJobSpec, tokens: int) -> RLJobSpec:
    return spec.model_copy(update={"train": spec.train.model_copy(update={"tokens_per_micro_batch": tokens})})


def _with_share(spec: RLJobSpec, share: float) -> RLJobSpec:
    arguments = spec.rollout.vllm_args | {SHARE: share}
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"vllm_args": arguments})})


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """Of a range with both ends, where whatever is less than what fits does too. None: nothing does."""
    if low > high or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
