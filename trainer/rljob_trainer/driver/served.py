"""What the rollout servers have answered, in numbers, and the metrics of a step that follow."""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_trainer.wire.rollout_client import Generation


@dataclass(frozen=True, slots=True)
class Served:
    """Sums over all responses so far."""

    tokens: int = 0
    passes: int = 0
    """Those that read guessed tokens."""
    right: int = 0
    """Guesses that the policy took."""

    def with_more(self, answers: Iterable[Generation]) -> "Served":
        found = list(answers)
        return Served(
            self.tokens + sum(len(g.tokens) for g in found),
            self.passes + sum(g.guesses[0] for g in found),
            self.right + sum(g.guesses[1] for g in found),
        )

    def metrics(self, before: "Served", seconds: float) -> dict[str, float]:
        """Of what came since `before`, in so many seconds."""
        found = {"rollout/tokens_per_s": (self.tokens - before.tokens) / seconds} if seconds else {}
        passes, right = self.passes - before.passes, self.right - before.right
        return found | ({"rollout/acceptance_length": 1 + right / passes} if passes else {})
