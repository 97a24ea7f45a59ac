"""The engine of `task: service`: one base model, and a set of adapters for each client, of which one is in the model at a time.

SPMD, as Engine is: every method is collective over all ranks of the process group.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

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
from rljob_trainer.megatron.model import PolicyModel, wrap
from rljob_trainer.megatron.offload import Offloader
from rljob_trainer.megatron.optimizer import build_adam
from rljob_trainer.megatron.provider import MODEL, read_config, work_of
from rljob_trainer.megatron.slots import ClientSlots
from rljob_trainer.megatron.step import ModelRanks
from rljob_trainer.wire.service import (
    CreateModel,
    ForwardBackward,
    LoadState,
    OptimStep,
    RefusedWork,
    Result,
)

NETWORK = "policy"
"""Name of a client's model in its checkpoints."""
ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")


class ServiceEngine(ModelRanks):
    """The default process group must exist, and `compat.install()` must have been called. Methods that work for a client raise RefusedWork when it
    asked for what cannot be done; its model is then as it was."""

    def __init__(self, spec: RLJobSpec, heartbeat: Callable[[], None]) -> None:
        """`heartbeat` is called whenever progress was made. Raises ConfigurationError for models that are unusable or do not fit the layout."""
        spec = with_adapters(spec)
        layout = Layout.of(spec, names.ROLE_TRAINER)
        self.layout, self.heartbeat = str(layout), heartbeat
        planner = Planner(spec, layout, work=work_of(spec))
        super().__init__(layout, spec.lifecycle.stall_timeout_seconds, planner)
        self._model = PolicyModel(spec, self._parallel)
        assert self._model.adapters, "clients train adapters"
        self._chunks = wrap(self._model.modules, self._model.config, spec)
        self._optimizer = build_adam(spec.train.optimizer, self._chunks)
        self._slots = ClientSlots(self._chunks, self._optimizer, self._model.adapters, spec.service.max_models)
        self._passes = Accumulation(self._model, self._chunks, self._optimizer, planner, self._parallel, heartbeat)
        self._offloader = Offloader(Offload(), self._model.modules, self._chunks, self._optimizer)
        self.backend = backend.describe(self._model.config, self._optimizer)

    def create(self, work: CreateModel) -> Result:
        self._slots.create(work)
        return Result()

    def keep(self, models: Collection[str]) -> None:
        """Forget all other models."""
        self._slots.keep(models)

    def forward_backward(self, work: ForwardBackward) -> Result:
        self._slots.use(work.model)
        return self._passes.run(work)

    def optim_step(self, work: OptimStep) -> Result:
        self._slots.use(work.model)
        return self._passes.step(work)

    def adapters(self, model: str) -> tuple[LoraSpec, Iterator[tuple[str, torch.Tensor]]]:
        """A client's adapters without what pads them, by the names of the peft library without their prefix, and their settings. Every rank must
        exhaust the iterator."""
        settings = self._slots.use(model)
        return LoraSpec(rank=settings.rank, alpha=ALPHA), self._exported(settings)

    def save(self, model: str, directory: Path) -> Writing:
        """Start to write a client's model, without its gradients, into a new directory that all ranks share; see checkpoint.save."""
        settings = self._slots.use(model)
        return checkpoint.save(directory, self._state(settings), False, Staging())

    def load(self, work: LoadState) -> Result:
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
        return Result()

    def _exported(self, settings: CreateModel) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._model.export_adapters():
            self.heartbeat()
            if settings.attention if name.split(".")[-3] in ATTENTION_MODULES else settings.mlp:
                yield name, tensor[: settings.rank] if name.endswith(".lora_A.weight") else tensor[:, : settings.rank]

    def _state(self, settings: CreateModel) -> checkpoint.State:
        network = checkpoint.CheckpointedNetwork(
            self._model.modules, self._model.base, self._optimizer, None, self._offloader
        )
        return checkpoint.State({NETWORK: network}, _identity(settings), self.layout)


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
    trained = " and ".join(name for name in ("attention", "mlp") if identity[name])
    return f"rank {identity['rank']}, adapters of {trained}"
