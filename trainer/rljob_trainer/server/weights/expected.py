"""The tensors that an update of a model must have, read from the model's own checkpoint."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from rljob_trainer.model_files import DTYPES, weight_files
from rljob_trainer.wire.weights.bucket import Entry, torch_dtype
from rljob_trainer.wire.weights.drafts import CONTAINED, DRAFT
from rljob_trainer.wire.weights.multi_token import is_copy, multi_token_layers

TIED = "lm_head.weight"
EXPERT_BIAS = ".e_score_correction_bias"
"""Suffix of the routers' expert biases. Trainer and vLLM have them in float32, whatever type the checkpoint has."""


class RefusedUpdateError(ValueError):
    """The update does not fit the model. The served weights have not been touched."""


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """Name, shape and permitted types of every tensor."""

    tensors: dict[str, tuple[tuple[int, ...], frozenset[str]]]
    optional: frozenset[str]
    """What an update may leave out: an output layer that shares the embedding's weight, and the layers for multi-token prediction where the server
    does not guess with them."""

    @staticmethod
    def of(model: Path, dtype: str, guesses: bool = False, draft: Path | None = None) -> "ExpectedTensors":
        """The tensors of a Hugging Face directory that is served in `dtype`. A tensor may be sent in that type or in its type in the checkpoint.

        `guesses`: the server guesses tokens with the layers for multi-token prediction, behind the last layer. Copies of embedding and output layer
        that files have in these are in no update: they share the policy's. `draft`: the directory of a draft that comes with every policy."""
        whole, config = dict(_described(model, dtype)), json.loads((model / "config.json").read_text())
        further = multi_token_layers(config)
        tensors = {n: t for n, t in whole.items() if not is_copy(n, further)}
        if draft:
            tensors |= {DRAFT + n: t for n, t in _described(draft, dtype) if n != CONTAINED}
        optional = {TIED} if config.get("tie_word_embeddings", False) else set()
        optional |= set() if guesses else {name for name in tensors if name.startswith(further)}
        return ExpectedTensors(tensors, frozenset(optional))

    @property
    def described(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and a permitted type of each."""
        return {name: (shape, torch_dtype(min(dtypes))) for name, (shape, dtypes) in self.tensors.items()}

    def check(self, entries: Iterable[Entry]) -> None:
        """Raise RefusedUpdateError for an entry that is not a tensor of the model, or has another shape or type."""
        for entry in entries:
            shape, dtypes = self.tensors.get(entry.name, ((), frozenset()))
            if not dtypes:
                if entry.name in self.optional:
                    continue
                raise RefusedUpdateError(f"{entry.name} is not a tensor of this model")
            if entry.shape != shape:
                raise RefusedUpdateError(f"{entry.name} has shape {list(entry.shape)}, this model has {list(shape)}")
            if entry.dtype not in dtypes:
                raise RefusedUpdateError(
                    f"{entry.name} is {entry.dtype}, this model takes {' or '.join(sorted(dtypes))}"
                )

    def check_complete(self, names: Iterable[str]) -> None:
        """Raise RefusedUpdateError when a tensor of the model is missing."""
        missing = self.tensors.keys() - set(names) - self.optional
        if missing:
            raise RefusedUpdateError(f"{len(missing)} tensors are missing, among them {sorted(missing)[:3]}")


def _described(directory: Path, dtype: str) -> Iterator[tuple[str, tuple[tuple[int, ...], frozenset[str]]]]:
    """Name, shape and permitted types of each tensor of a directory's model. Other files may hold it once more: Mistral's have
    `consolidated.safetensors`, with other names."""
    files = weight_files(directory)
    if not files:
        raise RefusedUpdateError(f"{directory} holds no .safetensors file to compare an update with")
    for file in files:
        with safe_open(file, "pt") as handle:
            for name in handle.keys():  # noqa: SIM118 not a dictionary
                part = handle.get_slice(name)
                own = DTYPES.get(part.get_dtype(), dtype)
                wide = {"float32"} if name.endswith(EXPERT_BIAS) else set()
                yield name, (tuple(part.get_shape()), frozenset({dtype, own} | wide))
