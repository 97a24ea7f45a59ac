"""A policy with the layer that guesses its next tokens: in vLLM two models, which share embedding and output layer, and get one update."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import Module

from rljob_trainer.wire.weights.multi_token import multi_token_layers


class WithGuesses(Module):
    """Both models as one, whose loader gives each its own tensors."""

    def __init__(self, policy: Any, draft: Any, directory: Path) -> None:
        """`directory`: the model's files, whose names updates have."""
        super().__init__()
        self.policy, self.draft = policy, draft
        self._further = multi_token_layers(json.loads((directory / "config.json").read_text()))

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        received = list(tensors)
        self.policy.load_weights((name, t) for name, t in received if not name.startswith(self._further))
        self.draft.load_weights((name, t) for name, t in received if name.startswith(self._further))
