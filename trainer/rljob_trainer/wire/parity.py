"""Checks that trainer and rollouts have the same policy: both compute log-probabilities of the same tokens. No torch here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import NO_POLICY, Trajectory

LIMIT = {"float32": 1e-2, "bfloat16": 0.2, "quantized": 0.5}
"""Largest mean |train - rollout| log-probability of tokens under one policy.

float32: trainer and server differ by about 2e-5 when both are right; stale keys and values or a wrong tensor show as 0.1 to 9.
bfloat16: rounding alone gives about 0.02, differently in every kernel, and more in long responses of large models.
quantized: vLLM's FP8 gave 0.166 at 1.5 B on an H200 (docs/evidence/gpus.md), whichever type is trained.
"""
FLOOR = {"float32": 1e-3, "bfloat16": 0.05, "quantized": 0.25}
"""What the limit of a run is at least, above all noise that was seen: the mean grows when responses become longer or less certain."""
SIDES = ("trainer", "rollouts")
FIRST_STEPS, TIMES = 5, 3.0
"""A run whose first steps were close must stay close: its limit is TIMES their mean. A wrong bias in gpt_oss's router showed as 0.059, where 0.003 is
right, far below LIMIT."""
PROBE_SEQUENCES, PROBE_TOKENS = 4, 64
"""Enough to detect a wrong tensor, and cheap: a server computes logits over the whole vocabulary for each token of a probe."""


class MismatchError(RuntimeError):
    """The rollouts do not have the policy that is trained: weights were lost, mixed up or left stale."""


def arithmetic_of(spec: RLJobSpec) -> str:
    """The key of LIMIT for the rollouts of a job."""
    return "quantized" if spec.rollout.quantized else spec.model.dtype


class Compared(NamedTuple):
    """What trainer and rollouts say of the same tokens."""

    mean: float
    """|log-probability of the trainer - of the rollouts|, in a mean over tokens."""
    worst: float
    tokens: int
    no_number: Mapping[str, int]
    """By side: tokens whose log-probability is NaN or infinite there."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> "Compared":
        """`pairs`: of the trainer and of the rollouts, by token."""
        differences = [abs(ours - theirs) for ours, theirs in pairs]
        sides = zip(SIDES, zip(*pairs, strict=True), strict=True)
        no_number = {side: sum(not math.isfinite(value) for value in values) for side, values in sides}
        return cls(sum(differences) / len(differences), max(differences), len(pairs), no_number)


def require_match(compared: Compared, limit: float, of: str) -> None:
    """Raise MismatchError if the mean difference exceeds the limit, or is not a number. `of`: what the limit is derived from, for the message."""
    if compared.mean <= limit:
        return
    broken = [f"{n} from the {side}" for side, n in compared.no_number.items() if n]
    if broken:
        raise MismatchError(
            f"of {compared.tokens} tokens, {' and '.join(broken)} have a log-probability that is NaN or infinite: a kernel there is at fault, or a "
            "weight that is no number, and not a difference between trainer and rollouts"
        )
    raise MismatchError(
        f"log-probabilities of the trainer and the rollouts differ by {compared.mean:.3g} per token on average (at most {compared.worst:.3g}); "
        f"{limit:.3g} is the limit {of}. The rollouts do not serve the weights that are being trained"
    )


class RunLimit:
    """The limit of the mean difference in the steps of one run: TIMES that of its own first steps, from FLOOR to LIMIT; LIMIT until there are
    FIRST_STEPS."""

    def __init__(self, arithmetic: str) -> None:
        self._arithmetic = arithmetic
        self._first: list[float] = []

    def require(self, compared: Compared, update: int) -> None:
        """Raise MismatchError above the limit. `update`: which of the step's; the first of a step counts for the limit."""
        require_match(compared, *self._limit())
        if not update and len(self._first) < FIRST_STEPS:
            self._first.append(compared.mean)

    def _limit(self) -> tuple[float, str]:
        ceiling = LIMIT[self._arithmetic]
        if len(self._first) == FIRST_STEPS:
            mean = sum(self._first) / FIRST_STEPS
            own = max(FLOOR[self._arithmetic], TIMES * mean)
            if own < ceiling:
                return own, f"for this run, whose first {FIRST_STEPS} steps differed by {mean:.3g}"
        return ceiling, f"for {self._arithmetic} rollouts"

    def state(self) -> dict[str, Any]:
        """State to save in a checkpoint, JSON."""
        return {"arithmetic": self._arithmetic, "first": self._first}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, unless the rollouts compute in another way now."""
        if state["arithmetic"] == self._arithmetic:
            self._first = list(state["first"])


@dataclass(frozen=True, slots=True)
class Probe:
    """Token sequences with the trainer's log-probabilities, to compare a server with as soon as it has the policy."""

    sequences: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    """Of all tokens but the first of each sequence, at temperature 1."""
    arithmetic: str
    """Key of LIMIT for the rollouts."""

    def compare(self, served: Iterable[Sequence[float]]) -> tuple[float, float]:
        """Mean and largest difference per token from a server's log-probabilities. Raises MismatchError."""
        sequences = zip(self.log_probs, served, strict=True)
        compared = Compared.of([pair for ours, theirs in sequences for pair in zip(ours, theirs, strict=True)])
        require_match(compared, LIMIT[self.arithmetic], f"for {self.arithmetic} rollouts")
        return compared.mean, compared.worst


def probe_sequences(batch: Batch, keeps_requests: bool = False) -> list[list[int]]:
    """Token sequences for a probe: the beginnings of a few samples, up to their first image.

    Empty when the policy of the previous step generated some of the batch: then training compares the log-probabilities of the batch itself
    (PolicyObjective.check), unless requests keep keys and values of older policies (`keeps_requests`), which the trainer does not have. The last
    token of a sample is left out, since the server generates one more within the model's length.
    """
    written = (s.policy_step for sample in batch.samples for s in sample.sampled_segments)
    if not keeps_requests and any(step == batch.step - 1 for step in written):
        return []
    sequences = (s.tokens[:-1][: min([PROBE_TOKENS, *(at for at, _ in s.images)])].tolist() for s in batch.samples)
    return list(islice((tokens for tokens in sequences if len(tokens) > 1), PROBE_SEQUENCES))


def probe_sample(tokens: Sequence[int]) -> Trajectory:
    """A trajectory whose response is all but the first token, so that the trainer computes their log-probabilities."""
    fields = {"prompt_index": 0, "group": 0, "sample": 0, "finish_reason": "length", "reward": 0.0, "data_source": ""}
    return Trajectory.of_response(tokens[:1], tokens[1:], [0.0] * (len(tokens) - 1), NO_POLICY, **fields)
