"""Trainer and rollouts have the same policy: what both say of the same tokens. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Batch
from rljob_trainer.trajectory import NO_POLICY, Trajectory

LIMIT = {"float32": 1e-2, "bfloat16": 0.2, "quantized": 0.5}
"""Largest mean |train - rollout| log-probability of tokens under one policy.

float32: trainer and server differ by about 2e-5 when both are right; stale keys and values or a wrong tensor show as 0.1 to 9.
bfloat16: rounding alone gives about 0.02, differently in every kernel, and more in long responses of large models.
quantized: vLLM's FP8 gave 0.166 at 1.5 B on an H200 (docs/performance.md), whichever type is trained.
"""
PROBE_SEQUENCES, PROBE_TOKENS = 4, 64
"""Enough to see a wrong tensor, and little: a server computes the whole vocabulary for each token of a probe."""


class MismatchError(RuntimeError):
    """The rollouts have another policy than the one that is trained: weights were lost, mixed up or left stale."""


def arithmetic_of(spec: RLJobSpec) -> str:
    """Of the rollouts: a key of LIMIT."""
    return "quantized" if spec.rollout.quantized else spec.model.dtype


def require_match(arithmetic: str, mean: float, worst: float) -> None:
    """Raises MismatchError."""
    if not mean <= LIMIT[arithmetic]:
        raise MismatchError(
            f"log-probabilities of the trainer and the rollouts differ by {mean:.3g} per token on average (at most {worst:.3g}); "
            f"{LIMIT[arithmetic]:g} is the limit for {arithmetic} rollouts. The rollouts do not serve the weights that are being trained"
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """Tokens that a server is asked about as soon as it has the policy, and what the trainer says of them."""

    sequences: tuple[tuple[int, ...], ...]
    log_probs: tuple[tuple[float, ...], ...]
    """Of all tokens but the first, at temperature 1."""
    arithmetic: str
    """Of the rollouts: a key of LIMIT."""

    def compare(self, served: Iterable[Sequence[float]]) -> tuple[float, float]:
        """Mean and largest difference. Raises MismatchError."""
        pairs = [zip(ours, theirs, strict=True) for ours, theirs in zip(self.log_probs, served, strict=True)]
        differences = [abs(a - b) for pair in pairs for a, b in pair]
        mean, worst = sum(differences) / len(differences), max(differences)
        require_match(self.arithmetic, mean, worst)
        return mean, worst


def probe_sequences(batch: Batch) -> list[list[int]]:
    """What to ask, where the batch itself does not show that rollouts have the policy, because an older one generated it: the beginnings of a few
    samples, up to an image. Their last token is left to the server, which generates one within the model's length."""
    if any(s.policy_step == batch.step - 1 for sample in batch.samples for s in sample.sampled_segments):
        return []
    found = (s.tokens[:-1][: min([PROBE_TOKENS, *(at for at, _ in s.images)])].tolist() for s in batch.samples)
    return list(islice((tokens for tokens in found if len(tokens) > 1), PROBE_SEQUENCES))


def probe_sample(tokens: Sequence[int]) -> Trajectory:
    """All but the first token as the response, so that the trainer measures them."""
    fields = {"prompt_index": 0, "group": 0, "sample": 0, "finish_reason": "length", "reward": 0.0, "data_source": ""}
    return Trajectory.of_response(tokens[:1], tokens[1:], [0.0] * (len(tokens) - 1), NO_POLICY, **fields)
