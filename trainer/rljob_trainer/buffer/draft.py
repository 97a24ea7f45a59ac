"""A sample while it is generated: whole, or in pieces that updates of the weights interrupt."""

from dataclasses import dataclass, field

import numpy as np

from rljob_trainer.buffer.assembly import Outcome
from rljob_trainer.buffer.seeds import continuation_seed
from rljob_trainer.rollout.client import FinishReason, Generation, GenerationRequest
from rljob_trainer.trajectory import Experts, Segment, appended, sampled


@dataclass(slots=True)
class Draft:
    """One response, as far as it has come."""

    response: tuple[Segment, ...] = ()
    finish_reason: FinishReason = "abort"
    outcome: Outcome | None = None
    """Once it is scored."""
    routed_experts: Experts | None = field(default=None, compare=False)
    """Of prompt and response, once it is complete: its last piece was generated behind all of them."""

    @property
    def begun(self) -> bool:
        return bool(self.response) or self.finish_reason != "abort" or self.outcome is not None

    @property
    def length(self) -> int:
        """Tokens so far."""
        return sum(len(s.tokens) for s in self.response)

    def add(self, piece: Generation) -> None:
        segment = sampled(piece.tokens, piece.log_probs, piece.policy_step)
        self.response = appended(self.response, segment)
        self.finish_reason, self.routed_experts = piece.finish_reason, piece.routed_experts

    def rest(self, begun: GenerationRequest, index: int) -> GenerationRequest:
        """What is asked for next: the rest of response `index` of `begun`, behind the tokens that it has."""
        sampling = begun.sampling.model_copy(update={"max_tokens": begun.sampling.max_tokens - self.length})
        tokens = np.concatenate((begun.tokens, *(s.tokens for s in self.response)))
        return GenerationRequest(tokens, 1, sampling, continuation_seed(begun.seed, index, self.length), begun.images)
