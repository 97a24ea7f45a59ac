"""A sample while it is generated: in one request, or in several when weight updates interrupt it (partial rollouts).

The seeds of its requests depend only on `data.seed`, step and position in the data, so that a resumed run samples the same responses,
also as another job.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.wire.rollout_client import FinishReason, Generation, GenerationRequest
from rljob_trainer.wire.trajectory import Experts, Segment, appended


def training_seed(seed: int, step: int, position: int) -> int:
    """Seed of sample 0 of the prompt at `position` of the data, begun in `step`. vLLM adds i for sample i."""
    return _hash("train", seed, step, position)


def turn_seed(seed: int, sample: int, turn: int) -> int:
    """Seed of turn number `turn`, from 0, of an agent's sample."""
    return _hash("turn", seed, sample, turn)


def continuation_seed(seed: int, sample: int, generated: int) -> int:
    """Seed for continuing a sample after its first `generated` tokens. The original seed would repeat the random numbers of its beginning."""
    return _hash(seed, sample, generated)


def evaluation_seed(seed: int, name: str, prompt_index: int) -> int:
    """Seed of response 0 to a held-out prompt of the set `name`. It is the same at every evaluation, so that only the policy makes a difference."""
    return _hash("evaluation", seed, name, prompt_index)


def _hash(*parts: object) -> int:
    """48 bits, so that adding a sample's index stays within 64 bits."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])


TOKENS_PER_CHARACTER = 4
"""At most: each of its bytes may be one."""


@dataclass(slots=True)
class PartialSample:
    """One response as far as it has been generated."""

    response: tuple[Segment, ...] = ()
    finish_reason: FinishReason = "abort"
    """`abort`: there is more to generate."""
    outcome: Outcome | None = None
    """Set once the response is complete and scored."""
    routed_experts: Experts | None = field(default=None, compare=False)
    """See Trajectory.routed_experts. Those of the last piece: it was generated with prompt and earlier pieces as its prompt."""

    @property
    def begun(self) -> bool:
        return bool(self.response) or self.finish_reason != "abort" or self.outcome is not None

    @property
    def length(self) -> int:
        """Tokens generated so far."""
        return sum(len(s.tokens) for s in self.response)

    def add(self, piece: Generation) -> None:
        for segment in piece.segments:
            self.response = appended(self.response, segment)
        self.finish_reason, self.routed_experts = piece.finish_reason, piece.routed_experts

    def end_at(self, stop: Sequence[str], cut: int, decoded: Callable[[list[int]], str]) -> None:
        """End behind the first text of `stop` that begins before token `cut` and ends behind it. A server looks for these only in what it writes
        itself, and has continued from there."""
        near = TOKENS_PER_CHARACTER * max(map(len, stop))
        start, end = max(0, cut - near), min(self.length, cut + near)
        tokens = np.concatenate([np.zeros(0, np.int32), *(s.tokens for s in self.response)])[start:end].tolist()

        def holds_one(count: int) -> bool:
            written = decoded(tokens[: count - start])
            return any(text in written for text in stop)

        count = cut + bisect_left(range(cut, end + 1), True, key=holds_one)
        if count <= end:
            self.response, self.finish_reason, self.routed_experts = _first(self.response, count), "stop", None

    def continuation(self, begun: GenerationRequest, index: int) -> GenerationRequest:
        """The request for the rest of response `index` of `begun`: its prompt is extended by the tokens generated so far."""
        sampling = begun.sampling.model_copy(update={"max_tokens": begun.sampling.max_tokens - self.length})
        tokens = np.concatenate((begun.tokens, *(s.tokens for s in self.response)))
        return GenerationRequest(tokens, 1, sampling, continuation_seed(begun.seed, index, self.length), begun.images)


def _first(segments: Sequence[Segment], count: int) -> tuple[Segment, ...]:
    """Their first `count` tokens."""
    kept: tuple[Segment, ...] = ()
    for segment in segments:
        assert segment.log_probs is not None, "the policy wrote it"
        own = replace(segment, tokens=segment.tokens[:count], log_probs=segment.log_probs[:count])
        kept, count = appended(kept, own), count - len(own.tokens)
    return kept
