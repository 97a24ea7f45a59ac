"""One response, drawn by one policy or by several, one after the other."""

from dataclasses import dataclass
from typing import Literal

from rljob_trainer.batch import Span
from rljob_trainer.rollout.client import Generation


@dataclass(frozen=True, slots=True)
class Response:
    """What there is of it."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Of each token, under the policy that drew it."""
    spans: tuple[Span, ...] = ()
    """Which policy drew which tokens."""
    finish_reason: Literal["stop", "length"] | None = None
    """None: it is not complete."""

    def then(self, piece: Generation) -> "Response":
        """With what was drawn after it."""
        assert self.finish_reason is None, "a complete response does not go on"
        assert len(piece.tokens) == len(piece.log_probs), "every token has its own log-probability"
        return Response(
            self.tokens + piece.tokens,
            self.log_probs + piece.log_probs,
            joined(self.spans, Span(piece.policy_step, len(piece.tokens))),
            None if piece.finish_reason == "abort" else piece.finish_reason,
        )


def joined(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """`span` behind the others: none when it is empty, one with the last when the same policy drew both."""
    if not span.tokens:
        return spans
    if spans and spans[-1].policy_step == span.policy_step:
        return (*spans[:-1], Span(span.policy_step, spans[-1].tokens + span.tokens))
    return (*spans, span)
