"""A sample while it is generated: in one request, or in several when weight updates interrupt it (partial rollouts)."""

from dataclasses import dataclass, field

import numpy as np

from rljob_trainer.driver.buffer.assembly import Outcome
from rljob_trainer.driver.buffer.seeds import continuation_seed
from rljob_trainer.wire.rollout_client import FinishReason, Generation, GenerationRequest
from rljob_trainer.wire.trajectory import Experts, Segment, appended, sampled


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
        segment = sampled(piece.tokens, piece.log_probs, piece.policy_step)
        self.response = appended(self.response, segment)
        self.finish_reason, self.routed_experts = piece.finish_reason, piece.routed_experts

    def continuation(self, begun: GenerationRequest, index: int) -> GenerationRequest:
        """The request for the rest of response `index` of `begun`: its prompt is extended by the tokens generated so far."""
        sampling = begun.sampling.model_copy(update={"max_tokens": begun.sampling.max_tokens - self.length})
        tokens = np.concatenate((begun.tokens, *(s.tokens for s in self.response)))
        return GenerationRequest(tokens, 1, sampling, continuation_seed(begun.seed, index, self.length), begun.images)
