"""The engine of `task: service`: one base model, and a set of adapters for each client, of which one is in the model at a time. It is of the
largest rank. Or a model all of whose parameters are trained (whole_model.py).

SPMD, as Engine is: every method is collective over all ranks of the process group.

A client's model is what training changes: adapters, their float32 copies, moments, counts of steps, and gradients that were accumulated and not yet
reduced. All of it lies on the host while another client's model is in the adapters, as each rank has it, so that whoever comes back finds the same
bits. Ranks below the largest are padded with rows of A and columns of B that are 0: so are their gradients, and Adam leaves them 0.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel

from rljob_api import names
from rljob_api.families import targets_of
from rljob_api.rules.lora import modules_of, parts_of
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LoraSpec
from rljob_api.spec.roles import Offload
from rljob_api.spec.service import ALPHA
from rljob_trainer.checkpoint.staging import Staging
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron import backend, checkpoint
from rljob_trainer.megatron.accumulation import Accumulation
from rljob_trainer.megatron.batching import Planner
from rljob_trainer.megatron.compat.adam import allocate
from rljob_trainer.megatron.lora import Adapters
from rljob_trainer.megatron.memory import Offloader, torch_optimizers
from rljob_trainer.megatron.model import PolicyModel, wrap
from rljob_trainer.megatron.optimizer import begin_anew, build_adam, zero_gradients
from rljob_trainer.megatron.provider import MODEL, read_config, work_of
from rljob_trainer.megatron.step import ModelRanks
from rljob_trainer.megatron.whole_model import WholeModel
from rljob_trainer.wire.service import (
    CreateModel,
    ForwardBackward,
    LoadState,
    OptimStep,
    RefusedWork,
    WorkResult,
)
from rljob_trainer.wire.weights.plan import GatherPhase

ATTENTION = ".self_attention."
"""In megatron's names of a layer's matrices; those of the MLP have another."""
NETWORK = "policy"
"""Name of a client's model in its checkpoints."""
ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")


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

        def is_trained(name: str) -> bool:
            return work.attention if ATTENTION in name else work.mlp

        self._adapters.begin(work.seed, work.rank, is_trained)
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

    def restart(self) -> None:
        """Give the model in the adapters an optimizer that has made no step, and no gradients."""
        begin_anew(self._chunks, self._optimizer)

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
        tensors = list(self._tensors())
        if not slot.tensors:
            slot.tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda) for t in tensors]
        for kept, tensor in zip(slot.tensors, tensors, strict=True):
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


class ServiceEngine(ModelRanks):
    """The default process group must exist, and `compat.install()` must have been called. Methods that work for a client raise RefusedWork when it
    asked for what cannot be done; its model is then as it was."""

    def __init__(self, spec: RLJobSpec, heartbeat: Callable[[], None]) -> None:
        """`heartbeat` is called whenever progress was made. Raises ConfigurationError for models that are unusable or do not fit the layout."""
        spec = with_adapters(spec) if spec.adapters else spec
        layout = Layout.of(spec, names.ROLE_TRAINER)
        self.layout, self.heartbeat = str(layout), heartbeat
        planner = Planner(spec, layout, work=work_of(spec))
        super().__init__(layout, spec.lifecycle.stall_timeout_seconds, planner)
        self._model = PolicyModel(spec, self._parallel)
        self._chunks = wrap(self._model.modules, self._model.config, spec)
        self._optimizer = build_adam(spec.train.optimizer, self._chunks)
        self._slots = self._room_for_models(spec.service.max_models)
        self._passes = Accumulation(self._model, self._chunks, self._optimizer, planner, self._parallel, heartbeat)
        self._offloader = Offloader(Offload(), self._model.modules, self._chunks, self._optimizer)
        self.backend = backend.describe(self._model.config, self._optimizer)

    def _room_for_models(self, most: int) -> ClientSlots | WholeModel:
        if self._model.adapters:
            return ClientSlots(self._chunks, self._optimizer, self._model.adapters, most)
        return WholeModel(self._model, self._chunks, self._optimizer)

    def create(self, work: CreateModel) -> WorkResult:
        self._slots.create(work)
        return WorkResult()

    def keep(self, models: Collection[str]) -> None:
        """Forget all other models."""
        self._slots.keep(models)

    def forward_backward(self, work: ForwardBackward) -> WorkResult:
        self._slots.use(work.model)
        return self._passes.run(work)

    def optim_step(self, work: OptimStep) -> WorkResult:
        self._slots.use(work.model)
        return self._passes.step(work)

    def adapters(self, model: str) -> tuple[LoraSpec, Iterator[tuple[str, torch.Tensor]]]:
        """A client's adapters without what pads them, by the names of the peft library without their prefix, and their settings. Every rank must
        exhaust the iterator."""
        settings = self._slots.use(model)
        return LoraSpec(rank=settings.rank, alpha=ALPHA), self._exported(settings)

    def use(self, model: str) -> None:
        """Export this model from now on, where all parameters are trained."""
        self._slots.use(model)

    def export_owned(self) -> list[GatherPhase]:
        """See Engine.export_owned."""
        return self._model.export_owned()

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """See Engine.hugging_face_config."""
        return self._model.hugging_face_config(config)

    def save(self, model: str, directory: Path) -> Writing:
        """Start to write a client's model, without its gradients, into a new directory that all ranks share; see checkpoint.save."""
        settings = self._slots.use(model)
        return checkpoint.save(directory, self._state(settings), False, Staging())

    def load(self, work: LoadState) -> WorkResult:
        """Continue a model from what `save` wrote, in this or another layout."""
        settings, directory = self._slots.use(work.model), Path(work.path)
        try:
            held = checkpoint.objective_of(directory, self._state(settings))
        except ConfigurationError as error:
            raise RefusedWork(f"{work.path}: {error.rule}") from error
        if held != _identity(settings):
            raise RefusedWork(f"{work.path} has {_described(held)}, and the model {_described(_identity(settings))}")
        self._slots.restart()
        checkpoint.load(directory, self._state(settings), self.heartbeat)
        if not work.optimizer:
            self._slots.restart()
        return WorkResult()

    def _exported(self, settings: CreateModel) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._model.export_adapters():
            self.heartbeat()
            if settings.attention if name.split(".")[-3] in ATTENTION_MODULES else settings.mlp:
                yield name, tensor[: settings.rank] if name.endswith(".lora_A.weight") else tensor[:, : settings.rank]

    def _state(self, settings: CreateModel) -> checkpoint.LiveState:
        network = checkpoint.CheckpointedNetwork(
            self._model.modules, self._model.base, self._optimizer, None, self._offloader
        )
        return checkpoint.LiveState({NETWORK: network}, _identity(settings), self.layout)


def with_adapters(spec: RLJobSpec) -> RLJobSpec:
    """The spec with the adapters of clients as those of the model, one for each matrix of its files."""
    assert spec.adapters, "a service trains adapters"
    config = read_config(spec.model.path, MODEL)
    targets = parts_of(modules_of(targets_of(None, config), config), config)
    lora = spec.adapters.model_copy(update={"targets": targets})
    return spec.model_copy(update={"model": spec.model.model_copy(update={"lora": lora})})


def _identity(settings: CreateModel) -> dict[str, Any]:
    """What a model must have in common with one whose state it continues."""
    return {key: value for key, value in asdict(settings).items() if key in ("rank", "attention", "mlp")}


def _described(identity: dict[str, Any]) -> str:
    if not identity["rank"]:
        return "all parameters"
    trained = " and ".join(name for name in ("attention", "mlp") if identity[name])
    return f"rank {identity['rank']}, adapters of {trained}"
