"""Tiny models in vLLM's own classes, in the process of the test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn import Module
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
    parallel_state,
)
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from rljob_trainer.machine import free_port
from rljob_trainer.server.weights.reload import InPlace
from rljob_trainer.server.weights.shadow import Shadow
from tests.trainer.megatron.models import make_config, random_model

Tensors = dict[str, torch.Tensor]


def policy(path: Path, seed: int, kind: str, **settings: Any) -> Tensors:
    """The tensors of a random model, as files have them."""
    random_model(make_config(kind, **settings), seed).save_pretrained(path)
    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}


@contextmanager
def engine(
    model: Path,
    rank: int = 0,
    tensor: int = 1,
    port: int = 0,
    experts: bool = False,
    pipeline: int = 1,
    copies: int = 1,
) -> Iterator[VllmConfig]:
    """One worker of a server. `port`: where its workers meet. `experts`: they divide experts, not their matrices. `copies`: data-parallel ones."""
    arguments = EngineArgs(
        str(model),
        dtype="float32",
        skip_tokenizer_init=True,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=copies,
        enable_expert_parallel=experts,
        distributed_executor_backend="external_launcher",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))  # what an external launcher sets
        found, workers = arguments.create_engine_config(), tensor * pipeline * copies
    found.parallel_config.rank = rank
    with set_current_vllm_config(found):
        init_distributed_environment(workers, rank, f"tcp://127.0.0.1:{port or free_port()}", rank, "gloo")
        initialize_model_parallel(tensor, pipeline)
        try:
            yield found
        finally:
            cleanup_dist_env_and_memory()


@contextmanager
def without_others() -> Iterator[None]:
    """Inside, `engine` makes a worker that has nobody to talk to: it can load, and not compute."""
    started, grouped = dist.init_process_group, dist.new_group

    def start(*_: Any, world_size: int, rank: int, **__: Any) -> None:
        started("fake", store=FakeStore(), world_size=world_size, rank=rank)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", start)
        patch.setattr(dist, "new_group", lambda ranks, *_, **__: grouped(ranks, backend="fake"))
        patch.setattr(parallel_state, "in_the_same_node_as", lambda group, *_, **__: [True] * group.size())
        patch.setattr(CpuCommunicator, "_all_group_ranks_share_shm_group_name", lambda _: False)
        patch.setattr(MessageQueue, "create_from_process_group", lambda *_, **__: None)
        yield


CPU = torch.device("cpu")
Target = InPlace | Shadow
Makes = Callable[[Module, VllmConfig, bool], Target]
"""From vLLM's model, its configuration, and whether it computes with weights as they are loaded."""


def in_place(model: Module, config: VllmConfig, keeps: bool = False) -> Target:
    return InPlace(model, config.model_config, keeps)


def shadow(model: Module, config: VllmConfig, keeps: bool = False) -> Target:
    return Shadow(model, config.model_config, CPU, keeps)


@torch.no_grad()
def update(target: Target, tensors: Tensors, pieces: int = 1) -> None:
    """In as many buckets, whose memory is used again."""
    names = list(tensors)
    for piece in range(pieces):
        bucket = {name: tensors[name].clone() for name in names[piece::pieces]}
        target.load(bucket.items())
        for tensor in bucket.values():
            tensor.fill_(7)
    target.check()
    target.apply()


def loaded(config: VllmConfig, tensors: Tensors) -> Module:
    """The model as vLLM has it before `process_weights_after_loading`."""
    config.compilation_config.static_forward_context.clear()  # of another one
    with set_default_torch_dtype(torch.float32), torch.no_grad():
        model = initialize_model(config)
        record_metadata_for_reloading(model)
        update(InPlace(model, config.model_config, keeps=True), tensors)
    return model


def loaded_from(files: Path, config: VllmConfig) -> Module:
    """The model as vLLM's own reader of files has it, before `process_weights_after_loading`."""
    config.compilation_config.static_forward_context.clear()  # of another one
    config.model_config.model = config.model_config.model_weights = str(files)
    with set_default_torch_dtype(torch.float32), torch.no_grad():
        model = initialize_model(config)
        record_metadata_for_reloading(model)
        get_model_loader(config.load_config).load_weights(model, config.model_config)
    return model


def served(config: VllmConfig, tensors: Tensors) -> Module:
    """As a server on CPU has it: its linear layers are packed, and have no weight of their own."""
    model = loaded(config, tensors)
    process_weights_after_loading(model, config.model_config, torch.device("cpu"))
    return model
