"""The server's side in vLLM's workers: a weight-transfer engine that stages a whole update, verifies it, and only then applies it.

vLLM's own engines overwrite the model as buckets arrive, and leave layers without memory when the trainer dies. Here the model is not touched before
`finish_weight_update`, which needs a successful `verify` of the digest of the whole update. The engines are registered with vLLM's weight-transfer
API (0.32, vllm/distributed/weight_transfer) under the names of their transports.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rljob_trainer.server.weights.adapters import ExpectedAdapters, apply_adapters
from rljob_trainer.server.weights.expected import TIED, ExpectedTensors, RefusedUpdateError
from rljob_trainer.server.weights.reload import computes_with_what_it_loads, load
from rljob_trainer.wire.weights import gloo, ipc, nccl
from rljob_trainer.wire.weights.bucket import Entry, digest, payload_size, unpack
from rljob_trainer.wire.weights.messages import Inbox
from rljob_trainer.wire.weights.protocol import GLOO, IPC, NCCL, AttemptFence

WorkerEnd = gloo.WorkerEnd | nccl.WorkerEnd | ipc.WorkerEnd

ROOM_BYTES = 2**30
"""Bytes that staging leaves free on a GPU. What does not fit into the rest is staged in host memory."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The attempt that updates, and the address at which its trainer listens."""

    attempt: int
    address: str
    port: int
    known: bool
    """The workers have joined the trainer's group for an earlier update, and reuse it."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A request to receive buckets, which are announced by messages (messages.py)."""

    attempt: int
    messages: str


@dataclass(slots=True)
class Arrived:
    """A received bucket that is not verified yet."""

    entries: list[Entry]
    payload: Tensor


class StagedEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """The engine, without its transport."""

    end_cls: type[WorkerEnd]
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fence = AttemptFence()
        self._end: WorkerEnd | None = None
        self._where = ("", 0)
        self._entries: list[Entry] = []
        self._staged: dict[str, Tensor] = {}
        self._verified = False

    @cached_property
    def expected(self) -> ExpectedTensors | ExpectedAdapters:
        name, lora = str(self.model_config.dtype).removeprefix("torch."), self.vllm_config.lora_config
        model = ExpectedTensors.of(Path(self.model_config.model), name)
        return ExpectedAdapters(model, lora.max_lora_rank) if lora else model

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the trainer's group, unless this worker is in it already. Raises AttemptSuperseded, RefusedUpdateError."""
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
        self._entries, self._staged, self._verified = [], {}, False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Without the base class's synchronization of the device, which fails on CPU: the model has not been touched yet."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Receive, verify and stage buckets. Raises AttemptSuperseded, RefusedUpdateError, CorruptBucketError, RuntimeError (transport)."""
        self._fence.admit(update_info.attempt)
        assert self._end is not None
        inbox = Inbox(self._end.store, update_info.messages, self.parallel_config.rank)
        with inbox.report_failure():
            self._receive(self._end, inbox)

    def _receive(self, end: WorkerEnd, inbox: Inbox) -> None:
        """Verify each bucket while the next one is being transferred, if there is memory for both."""
        arrived = None
        for message in inbox:
            if arrived and not self._has_room():
                self._stage(arrived, torch.device("cpu"))
                inbox.acknowledge()
                arrived = None  # free its memory for the next one
            before, arrived = arrived, self._begin(end, message)
            if before:
                self._stage(before, self.device)
                inbox.acknowledge()
            end.wait()
        if arrived:
            self._stage(arrived, self.device if self._has_room() else torch.device("cpu"))
            inbox.acknowledge()

    def _begin(self, end: WorkerEnd, message: dict[str, Any]) -> Arrived:
        entries = [Entry.from_json(e) for e in message["entries"]]
        self.expected.check(entries)
        payload = torch.empty(payload_size(e.size for e in entries), dtype=torch.uint8, device=self.device)
        end.receive(payload, message["transport"])
        return Arrived(entries, payload)

    def _stage(self, arrived: Arrived, where: torch.device) -> None:
        self._staged |= {name: tensor.to(where) for name, tensor in unpack(arrived.entries, arrived.payload)}
        self._entries += arrived.entries

    def _has_room(self) -> bool:
        """Whether a received bucket may stay on the device until the update is applied. Called once per bucket, because the CUDA driver is slow to
        answer."""
        return self.device.type != "cuda" or torch.cuda.mem_get_info(self.device)[0] >= ROOM_BYTES

    def verify(self, attempt: int, expected: str) -> None:
        """Check that the update is complete, and that it is what the trainer sent. Raises AttemptSuperseded, RefusedUpdateError."""
        self._fence.admit(attempt)
        self.expected.check_complete(self._staged)
        received = digest(self._entries)
        if received != expected:
            raise RefusedUpdateError(f"the update's digest is {received}, the trainer's {expected}")
        self._verified = True

    def finish_weight_update(self) -> None:
        """Apply a verified update. A failure in here leaves a model that must not serve."""
        if not self._verified:
            raise RefusedUpdateError("the update was not verified")
        with torch.no_grad():
            if self.vllm_config.lora_config:
                apply_adapters(self.model, self._staged)
            else:
                load(self.model, self.model_config, iter(self._with_output_layer().items()), self._in_place)
        self.start_weight_update()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # `_has_room` asks the driver what is free

    def _with_output_layer(self) -> dict[str, Tensor]:
        """What is staged. In vLLM 0.32 a model that says that it ties its output layer, and has one in its files, has one of its own: it gets the
        embedding that the trainer ties it to."""
        embedding = next((n for n in self._staged if n.endswith("embed_tokens.weight")), "")
        if self.model_config.word_embeddings_untied_by_checkpoint and embedding:
            return {TIED: self._staged[embedding]} | self._staged
        return self._staged

    @cached_property
    def _in_place(self) -> bool:
        return computes_with_what_it_loads(self.model)

    def discard(self) -> None:
        """Drop what is staged, and leave the trainer's group, which may be broken."""
        self.start_weight_update()
        self._leave()

    def _leave(self) -> None:
        if self._end is not None:
            self._end.close()
        self._end = None

    def shutdown(self) -> None:
        self.discard()


class GlooEngine(StagedEngine):
    """Buckets in host memory."""

    end_cls = gloo.WorkerEnd


class NcclEngine(StagedEngine):
    """Buckets in GPU memory."""

    end_cls = nccl.WorkerEnd


class IpcEngine(StagedEngine):
    """Buckets in the memory of a GPU that trainer and server share."""

    end_cls = ipc.WorkerEnd


for _name, _engine in ((GLOO, GlooEngine), (NCCL, NcclEngine), (IPC, IpcEngine)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _engine)


class WorkerExtension:
    """Methods that vLLM's weight-transfer API lacks. They are mixed into its worker (`--worker-extension-cls`) and called by collective_rpc.

    `self` is the vLLM worker. Importing this module registers our engines.
    """

    vllm_config: VllmConfig
    weight_transfer_engine: StagedEngine
    _weight_update_active: bool

    def rljob_verify(self, attempt: int, digest: str) -> None:
        """Verify the whole staged update."""
        self.weight_transfer_engine.verify(attempt, digest)

    def rljob_apply(self) -> None:
        """Apply a verified update. vLLM's own `finish_weight_update` would remove all adapters after it, also those that it brought."""
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.finish_weight_update()
        self._weight_update_active = False

    def rljob_discard(self) -> None:
        """Abandon an update at any point before it is applied, which vLLM 0.32 does not offer."""
        self.weight_transfer_engine.discard()
        self._weight_update_active = False
