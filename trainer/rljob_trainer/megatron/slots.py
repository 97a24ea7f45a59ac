"""The models of a service's clients: one set of adapters, of the largest rank, in which one client's model is at a time.

A client's model is what training changes: adapters, their float32 copies, moments, counts of steps, and gradients that were accumulated and not yet
reduced. All of it lies on the host while another client's model is in the adapters, as each rank has it, so that whoever comes back finds the same
bits. Ranks below the largest are padded with rows of A and columns of B that are 0: so are their gradients, and Adam leaves them 0.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel

from rljob_api.spec.service import ALPHA
from rljob_trainer.megatron.compat.adam import allocate
from rljob_trainer.megatron.lora import Adapters
from rljob_trainer.megatron.offload import torch_optimizers
from rljob_trainer.megatron.optimizer import zero_gradients
from rljob_trainer.wire.service import CreateModel, RefusedWork

ATTENTION = ".self_attention."
"""In megatron's names of a layer's matrices; those of the MLP have another."""


@dataclass(slots=True)
class _Slot:
    settings: CreateModel
    tensors: list[torch.Tensor] = field(default_factory=list)
    """While another model is in the adapters, what this one left there."""
    counts: list[Any] = field(default_factory=list)
    """Steps of each parameter group, where the optimizer counts them there."""


class ClientSlots:
    """Every method is called on all ranks in the same order; none communicates."""

    def __init__(self, chunks: Sequence[DistributedDataParallel], optimizer: Any, adapters: Adapters, most: int):
        """`most`: models at a time."""
        self._chunks, self._optimizer, self._adapters, self._most = chunks, optimizer, adapters, most
        self._slots: dict[str, _Slot] = {}
        self._resident: _Slot | None = None
        for part in optimizer.chained_optimizers:
            allocate(part)

    def create(self, work: CreateModel) -> None:
        """Make a model, and put it into the adapters. Raises RefusedWork."""
        self._require(work)
        self._leave()
        self._adapters.begin(work.seed, work.rank, lambda name: work.attention if ATTENTION in name else work.mlp)
        self._optimizer.reload_model_params()
        self.restart()
        self._slots[work.model] = self._resident = _Slot(work)
        self._adapters.scale(ALPHA / work.rank)

    def use(self, model: str) -> CreateModel:
        """Put a model into the adapters, unless it is there. Returns how it was created. Raises RefusedWork when there is none of this name."""
        slot = self._slot(model)
        if slot is not self._resident:
            self._leave()
            self._enter(slot)
        return slot.settings

    def keep(self, models: Collection[str]) -> None:
        """Forget all other models."""
        self._slots = {name: slot for name, slot in self._slots.items() if name in models}
        if self._resident and self._resident.settings.model not in self._slots:
            self._resident = None

    @torch.no_grad()
    def restart(self) -> None:
        """Give the model in the adapters an optimizer that has made no step, and no gradients."""
        zero_gradients(self._chunks, self._optimizer)
        for inner in torch_optimizers(self._optimizer):
            for group in inner.param_groups:
                group.pop("step", None)
            for state in inner.state.values():
                for tensor in state.values():
                    tensor.zero_()

    def _slot(self, model: str) -> _Slot:
        if model not in self._slots:
            raise RefusedWork(f"there is no model {model}")
        return self._slots[model]

    def _require(self, work: CreateModel) -> None:
        if work.model in self._slots:
            raise RefusedWork(f"there is a model {work.model} already")
        if len(self._slots) >= self._most:
            raise RefusedWork(f"there are {self._most} models already, spec.service.maxModels")
        if work.rank not in range(1, self._adapters.settings.rank + 1):
            raise RefusedWork(
                f"rank {work.rank} is not between 1 and {self._adapters.settings.rank}, spec.service.maxRank"
            )
        if work.unembed:
            raise RefusedWork("the output layer has no adapters: set train_unembed to false")
        if not (work.attention or work.mlp):
            raise RefusedWork("nothing would be trained: set train_attn or train_mlp")

    @torch.no_grad()
    def _leave(self) -> None:
        """Copy what is in the adapters to the host. A slot keeps its memory there for the next time."""
        slot, self._resident = self._resident, None
        if slot is None:
            return
        found = list(self._tensors())
        if not slot.tensors:
            slot.tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda) for t in found]
        for kept, tensor in zip(slot.tensors, found, strict=True):
            kept.copy_(tensor, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        slot.counts = [group.get("step") for group in self._optimizer.param_groups]

    @torch.no_grad()
    def _enter(self, slot: _Slot) -> None:
        zero_gradients(self._chunks, self._optimizer)
        for tensor, kept in zip(self._tensors(), slot.tensors, strict=True):
            tensor.copy_(kept, non_blocking=True)
        for group, count in zip(self._optimizer.param_groups, slot.counts, strict=True):
            group.pop("step", None)
            group.update({} if count is None else {"step": count})
        self._adapters.scale(ALPHA / slot.settings.rank)
        self._resident = slot

    def _tensors(self) -> Iterator[torch.Tensor]:
        """All that training changes on this rank, always in the same order."""
        buffers = [b for chunk in self._chunks for b in chunk.buffers + chunk.expert_parallel_buffers]
        for buffer in buffers:
            yield buffer.param_data
            yield buffer.grad_data
        storages = {buffer.param_data.untyped_storage().data_ptr() for buffer in buffers}
        for inner in torch_optimizers(self._optimizer):
            for p in (p for group in inner.param_groups for p in group["params"]):
                if p.untyped_storage().data_ptr() not in storages:  # shards of float32 parameters are views of these
                    yield p
                yield from (inner.state[p][key] for key in sorted(inner.state[p]))
