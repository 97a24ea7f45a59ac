"""A policy with what guesses its next tokens: in vLLM two models, which share the embedding, and get one update."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.nn import Module

from rljob_trainer.wire.weights.drafts import DRAFT


class WithGuesses(Module):
    """Both models as one, whose loader gives each its own tensors."""

    def __init__(self, policy: Any, draft: Any, own: tuple[str, ...]) -> None:
        """`own`: how the names of the draft's tensors begin in an update."""
        super().__init__()
        self.policy, self.draft = policy, draft
        self._own = own

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        received = list(tensors)
        self.policy.load_weights((name, t) for name, t in received if not name.startswith(self._own))
        self.draft.load_weights((name.removeprefix(DRAFT), t) for name, t in received if name.startswith(self._own))
