"""vLLM's side: an engine that stages a whole update, verifies it, and only then applies it.

vLLM's own order begins to overwrite the model with the first bucket and leaves layers without memory when the trainer dies. Here nothing
is touched before `finish_weight_update`, and that only after `seal` has compared the digest of everything.
Registered with vLLM's weight-transfer API (0.26, vllm/distributed/weight_transfer) under the name of its transport.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from rljob_trainer.weights import gloo, ipc, nccl
from rljob_trainer.weights.backends import GLOO, IPC, NCCL
from rljob_trainer.weights.bucket import Entry, digest, payload_size, unpack
from rljob_trainer.weights.fence import Fence
from rljob_trainer.weights.in_place import computes_with_what_it_loads
from rljob_trainer.weights.manifest import Manifest, RefusedUpdateError

ROOM_BYTES = 2**30
"""What staging leaves free on a GPU; an update that does not fit beside it is staged in host memory."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Whose update it is and where its trainer listens."""

    attempt: int
    address: str
    port: int
    known: bool
    """The workers are to have joined it for their last update."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket: its entries as JSON, and what the transport has to say of it."""

    attempt: int
    entries: list[dict[str, Any]]
    transport: dict[str, Any]


class StagedEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """All but the transport."""

    end_cls: type[gloo.WorkerEnd] | type[nccl.WorkerEnd] | type[ipc.WorkerEnd]
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fence = Fence()
        self._end: gloo.WorkerEnd | nccl.WorkerEnd | ipc.WorkerEnd | None = None
        self._where = ("", 0)
        self._entries: list[Entry] = []
        self._staged: dict[str, Tensor] = {}
        self._sealed = False

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.of(Path(self.model_config.model), str(self.model_config.dtype).removeprefix("torch."))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the trainer's group, if we are not in it. Raises FencedOut, RefusedUpdateError."""
        self._fence.admit(init_info.attempt)
        where = (init_info.address, init_info.port)
        if init_info.known:
            if self._end is None or self._where != where:
                raise RefusedUpdateError("this server has not joined the trainer's group")
            return
        self._leave()
        parallel = self.parallel_config
        self._end, self._where = self.end_cls(*where, parallel.rank, parallel.world_size), where

    def start_weight_update(self) -> None:
        self._entries, self._staged, self._sealed = [], {}, False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Without the base's synchronize, which a machine without an accelerator does not have; nothing has touched the model yet."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Receive, verify and stage one bucket. Raises FencedOut, RefusedUpdateError, CorruptBucketError, RuntimeError (transport)."""
        self._fence.admit(update_info.attempt)
        entries = [Entry.from_json(e) for e in update_info.entries]
        self.manifest.check(entries)
        assert self._end is not None
        payload = torch.empty(payload_size(e.size for e in entries), dtype=torch.uint8, device=self.device)
        self._end.receive(payload, update_info.transport)
        received = dict(unpack(entries, payload))
        self._staged |= received if self._has_room() else {name: tensor.cpu() for name, tensor in received.items()}
        self._entries += entries

    def _has_room(self) -> bool:
        """For what was received to stay where it is until the update is applied. Asked once per bucket: the driver's answer takes its time."""
        return self.device.type != "cuda" or torch.cuda.mem_get_info(self.device)[0] >= ROOM_BYTES

    def seal(self, attempt: int, expected: str) -> None:
        """Everything came and it is what the trainer sent. Raises FencedOut, RefusedUpdateError."""
        self._fence.admit(attempt)
        self.manifest.check_complete(self._staged)
        received = digest(self._entries)
        if received != expected:
            raise RefusedUpdateError(f"the update's digest is {received}, the trainer's {expected}")
        self._sealed = True

    def finish_weight_update(self) -> None:
        """Apply a sealed update. What fails in here leaves a model that cannot serve."""
        if not self._sealed:
            raise RefusedUpdateError("the update was not sealed")
        with torch.no_grad():
            self._load(iter(self._staged.items()))
        self.start_weight_update()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # `_has_room` asks the driver what is free

    def _load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        if self._in_place:
            self.model.load_weights(tensors)
            return
        initialize_layerwise_reload(self.model)
        self.model.load_weights(tensors)
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _repack_embeddings(self.model)

    @cached_property
    def _in_place(self) -> bool:
        return computes_with_what_it_loads(self.model)

    def discard(self) -> None:
        """Forget what is staged and leave the group, which may be broken."""
        self.start_weight_update()
        self._leave()

    def _leave(self) -> None:
        if self._end is not None:
            self._end.close()
        self._end = None

    def shutdown(self) -> None:
        self.discard()

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Abstract in the base class; the trainer's side is publisher.py."""
        raise NotImplementedError


def _repack_embeddings(model: torch.nn.Module) -> None:
    """vLLM on CPU keeps a packed copy of an output layer's weights. One that only shares its weight with the embedding (Llama's) gets no
    tensor of its own on reload, and vLLM 0.26 then leaves the packed copy of the old weights: log-probabilities of no policy at all."""
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


class GlooEngine(StagedEngine):
    """Buckets in host memory."""

    end_cls = gloo.WorkerEnd


class NcclEngine(StagedEngine):
    """Buckets in GPU memory."""

    end_cls = nccl.WorkerEnd


class IpcEngine(StagedEngine):
    """Buckets in the memory of a GPU that the trainer shares with us."""

    end_cls = ipc.WorkerEnd


for _name, _engine in ((GLOO, GlooEngine), (NCCL, NcclEngine), (IPC, IpcEngine)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _engine)
