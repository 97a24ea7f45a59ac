"""An update that consists of adapters only: its validation, and how it is put into vLLM's LoRA (0.32, vllm/lora).

The tensors have the peft library's names and shapes: `....q_proj.lora_A.weight` [rank, in] and `....q_proj.lora_B.weight` [out, rank]; B is
already multiplied by alpha / rank. Their base model is the one that the server has loaded from its model directory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from rljob_api.rules.lora import LORA_A, LORA_B
from rljob_trainer.server.weights.expected import ExpectedTensors, RefusedUpdateError
from rljob_trainer.wire.weights.bucket import Entry
from rljob_trainer.wire.weights.protocol import ADAPTERS


@dataclass(frozen=True, slots=True)
class ExpectedAdapters:
    """The adapters that a server with `--enable-lora` accepts."""

    model: ExpectedTensors
    rank: int
    """The largest rank that the server can hold."""

    def check(self, entries: Iterable[Entry]) -> None:
        """Raise RefusedUpdateError for an entry that is not A or B of an adapter to a matrix of the model."""
        for entry in entries:
            side = LORA_A if entry.name.endswith(LORA_A) else LORA_B
            shape, _ = self.model.tensors.get(entry.name.removesuffix(side) + ".weight", ((), frozenset()))
            if len(shape) != 2 or not entry.name.endswith(side):
                raise RefusedUpdateError(f"{entry.name} is not an adapter to a matrix of this model")
            rank = entry.shape[0 if side == LORA_A else -1]
            if rank > self.rank or entry.shape != ((rank, shape[1]) if side == LORA_A else (shape[0], rank)):
                rule = f"an adapter of rank {self.rank} or less to a matrix of {list(shape)}"
                raise RefusedUpdateError(f"{entry.name} has shape {list(entry.shape)}, which is not {rule}")

    def check_complete(self, names: Iterable[str]) -> None:
        """Raise RefusedUpdateError when an A lacks its B, or a B its A, or there are no adapters."""
        sent = set(names)
        first, second = ({n.removesuffix(side) for n in sent if n.endswith(side)} for side in (LORA_A, LORA_B))
        if first != second or not sent:
            raise RefusedUpdateError(f"one half is missing of the adapters of {sorted(first ^ second)[:3]}")


class AdapterUpdate:
    """Keeps the adapters of an update in host memory until it is complete."""

    def __init__(self, model: Any) -> None:
        """`model`: vLLM's model, with a LoRA manager."""
        self._model = model
        self._tensors: dict[str, Tensor] = {}

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in tensors}

    def check(self) -> None:
        """Nothing to do: ExpectedAdapters has."""

    def apply(self) -> None:
        apply_adapters(self._model, self._tensors)

    def abandon(self) -> None:
        """Nothing to do: the model was not touched."""


def apply_adapters(model: Any, tensors: dict[str, Tensor]) -> None:
    """Replace the current adapters. `model`: vLLM's model, with a LoRA manager."""
    manager, mapper = model.lora_manager, getattr(model, "hf_to_vllm_mapper", None)
    rank = max(tensor.shape[0] for name, tensor in tensors.items() if name.endswith(LORA_A))
    settings = PEFTHelper(r=rank, lora_alpha=rank, target_modules=[])
    adapters = LoRAModel.from_lora_tensors(
        ADAPTERS,
        tensors,
        settings,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        weights_mapper=mapper.get_rename_mapper() if mapper else None,
    )
    manager.remove_adapter(ADAPTERS)
    manager.add_adapter(adapters)
    manager.activate_adapter(ADAPTERS)
