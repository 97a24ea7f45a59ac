"""The server's side in vLLM's workers: a weight-transfer engine that receives an update while the server generates, verifies it, and then applies it.

vLLM's own engines overwrite the model as buckets arrive, and leave layers without memory when the trainer dies. Here the model is not touched before
`apply`, which needs a successful `verify` of the digest of the whole update; except where the server serves nothing, and the update is loaded over
what is there. The engines are registered with vLLM's weight-transfer API (0.32, vllm/distributed/weight_transfer) by the names of their transports.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Module
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from rljob_trainer.server.weights.adapters import AdapterUpdate, ExpectedAdapters
from rljob_trainer.server.weights.expected import TIED, ExpectedTensors, RefusedUpdateError
from rljob_trainer.server.weights.guesses import WithGuesses
from rljob_trainer.server.weights.needs import needs
from rljob_trainer.server.weights.reception import Reception
from rljob_trainer.server.weights.reload import InPlace, computes_with_what_it_loads
from rljob_trainer.server.weights.room import shadow_device
from rljob_trainer.server.weights.shadow import Shadow
from rljob_trainer.server.weights.source import Connection, WorkerEnd, WorkerPlace
from rljob_trainer.wire.weights import chain, ipc, nccl, protocol
from rljob_trainer.wire.weights.door import Door, own_address
from rljob_trainer.wire.weights.drafts import DRAFT, LEARNS
from rljob_trainer.wire.weights.multi_token import multi_token_layers
from rljob_trainer.wire.weights.protocol import CHAIN, IPC, NCCL, AttemptFence, Offer
from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice


class Target(Protocol):
    """Where an update is loaded."""

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load some verified tensors, which are valid only until this returns."""
        ...

    def check(self) -> None:
        """Called after all tensors. Raises when some have no effect."""
        ...

    def apply(self) -> None:
        """Have the model compute with the update."""
        ...

    def abandon(self) -> None:
        """The update will not be completed."""
        ...


class OpenedUpdate(NamedTuple):
    """A worker's answer when an update is opened."""

    door: tuple[str, int]
    """Where senders and other workers reach it."""
    apart: bool
    """Whether the update can be received without touching the model."""
    needs: list[Any]
    """What it needs of an update (Needs as JSON)."""


class ReceivingEngine(WeightTransferEngine[WeightTransferInitInfo, WeightTransferUpdateInfo]):
    """The engine, without its transport. Updates go through its own methods: those of vLLM's protocol do nothing, because it knows one sender, a
    request for each bucket, and no way to abandon an update."""

    end_cls: type[WorkerEnd]
    init_info_cls = WeightTransferInitInfo
    update_info_cls = WeightTransferUpdateInfo
    defers_processing = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fence = AttemptFence()
        self._door: Door | None = None
        self._connections: dict[Offer, Connection] = {}
        """Those of the last update."""
        self._reception: Reception | None = None
        self._target: Target | None = None
        self._shadow: Shadow | None = None
        self._room: torch.device | None = None
        """Where there was room for a shadow when this update was opened: other workers have made theirs since."""
        self.draft: Module | None = None
        """vLLM's model that guesses tokens; None: there is none, or no update has come yet."""
        self._verified = False
        if not self._guesses:
            self._needs  # noqa: B018 takes seconds for tens of thousands of tensors, which the first update has not

    @cached_property
    def expected(self) -> ExpectedTensors | ExpectedAdapters:
        name, lora = str(self.model_config.dtype).removeprefix("torch."), self.vllm_config.lora_config
        model = ExpectedTensors.of(Path(self.model_config.model), name, self._guesses_itself, self._learnt_draft)
        return ExpectedAdapters(model, lora.max_lora_rank) if lora else model

    @cached_property
    def _needs(self) -> dict[str, Slice]:
        """The tensors of which this worker does not need all, where workers have parts of the model of their own, and keep them."""
        parallel = self.parallel_config
        own = (parallel.world_size > 1 or parallel.enable_expert_parallel) and not parallel.enable_eplb
        if not own or isinstance(self.expected, ExpectedAdapters):
            return {}
        return needs(self.served, self.model_config, self.expected.described, self._with_output_layer)

    @cached_property
    def _needs_in_words(self) -> list[Any]:
        """The same in few words: a large mixture has tens of thousands of names, and every update asks."""
        return Needs.of(self._needs).as_json()

    @property
    def worker(self) -> int:
        """The place of this worker in its server: in the order of data-parallel copies, and of ranks in each."""
        parallel = self.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def admit(self, attempt: int, offers: Sequence[Offer], serves: bool) -> OpenedUpdate:
        """`serves`: the server serves a policy, which is not to be lost before the next one is complete. Raises AttemptSuperseded."""
        self._fence.admit(attempt)
        self._door = self._door or Door(own_address(offers[0].address))
        self._door.clear()
        apart = self.vllm_config.lora_config is not None or (serves and self._has_shadow())
        return OpenedUpdate(self._door.address, apart, self._needs_in_words)

    def start(self, update: str, server: str, offers: Sequence[Offer], apart: bool) -> None:
        """Begin to receive an update. `server`: its pod uid. `apart`: the model is not touched before `apply`."""
        assert self._door, "the update has been admitted"
        self._target, self._verified = self._target_of(apart), False
        place = WorkerPlace(server, self.worker, self._door, self.device)
        kept = {offer: self._connections.pop(offer) for offer in offers if offer in self._connections}
        self._leave()
        self._reception = Reception(place, update, self.end_cls, self.expected.check, self._load)
        self._reception.start(offers, kept)

    def verify(self, attempt: int, digests: Sequence[str]) -> None:
        """Check that this worker has all that it needs, and that it is what the trainer sent. `digests`: by worker. Raises AttemptSuperseded,
        RefusedUpdateError, and what ended the reception."""
        self._fence.admit(attempt)
        if self._reception is None or self._target is None:
            raise RefusedUpdateError("this server has no update")
        names, received = self._reception.result(protocol.SILENT_SECONDS)
        self.expected.check_complete(names | {name for name, part in self._needs.items() if part == NOTHING})
        expected = digests[self.worker]
        if received != expected:
            raise RefusedUpdateError(f"the update's digest is {received}, the trainer's {expected}")
        self._target.check()
        self._verified = True

    def apply(self) -> None:
        """Apply a verified update. A failure in here leaves a model that must not serve."""
        if not self._verified or self._target is None or self._reception is None:
            raise RefusedUpdateError("the update was not verified")
        with torch.no_grad():
            self._target.apply()
        self._connections = self._reception.connections
        self._reception, self._target, self._verified = None, None, False
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # of buckets

    def discard(self) -> None:
        """Drop the update, and leave its senders, whose connections may be broken."""
        if self._reception:
            self._reception.abandon()
        if self._target:
            self._target.abandon()
        self._reception, self._target, self._verified = None, None, False
        self._leave()

    def shutdown(self) -> None:
        self.discard()

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """See the class."""

    def start_weight_update(self) -> None:
        """See the class."""

    def receive_weights(self, update_info: WeightTransferUpdateInfo) -> None:
        """See the class."""

    def finish_weight_update(self) -> None:
        """See the class."""

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        assert self._target
        transforms = isinstance(self._target, InPlace)  # layers, as soon as they are complete
        with set_current_vllm_config(self.vllm_config) if transforms else nullcontext():
            self._target.load(self._with_output_layer(tensors))

    def _with_output_layer(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """In vLLM 0.32 a model that says that it ties its output layer, and has one in its files, has one of its own: it gets the embedding that the
        trainer ties it to."""
        for name, tensor in tensors:
            yield name, tensor
            if name.endswith("embed_tokens.weight") and self.model_config.word_embeddings_untied_by_checkpoint:
                yield TIED, tensor

    def _leave(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

    @property
    def _guesses(self) -> bool:
        """Whether the server guesses tokens with what comes with every policy."""
        return self._guesses_itself or self._learnt_draft is not None

    @property
    def _guesses_itself(self) -> bool:
        """Whether the server guesses tokens with the policy's own layer for multi-token prediction."""
        speculation = self.vllm_config.speculative_config
        return speculation is not None and speculation.method == "mtp"

    @property
    def _learnt_draft(self) -> Path | None:
        """The directory of a draft that comes with every policy; None: there is none."""
        if os.environ.get(LEARNS) != "1":
            return None
        assert self.vllm_config.speculative_config, "the launcher set both"
        return Path(self.vllm_config.speculative_config.model)

    @cached_property
    def served(self) -> Module:
        """What updates are loaded into: the model, with what guesses where it comes with every policy."""
        if not self._guesses:
            return self.model
        assert self.draft, "the worker has handed it over"
        config = json.loads((Path(self.model_config.model) / "config.json").read_text())
        own = (DRAFT,) if self._learnt_draft else multi_token_layers(config)
        return WithGuesses(self.model, self.draft, own)

    def _has_shadow(self) -> bool:
        """Whether there is a shadow, or room for one."""
        self._room = self._shadow_device() if self._shadow is None else None
        return self._shadow is not None or self._room is not None

    def _shadow_device(self) -> torch.device | None:
        workers = self.parallel_config.local_world_size * self.parallel_config.data_parallel_size_local
        return shadow_device(self.served, self.device, workers)

    def _target_of(self, apart: bool) -> Target:
        if self.vllm_config.lora_config:
            return AdapterUpdate(self.model)
        if not apart:
            return InPlace(self.served, self.model_config, self._keeps)
        if self._shadow is None:
            assert self._room, "it has been asked for"
            self._shadow = Shadow(self.served, self.model_config, self._room, self._keeps)
        return self._shadow

    @cached_property
    def _keeps(self) -> bool:
        return computes_with_what_it_loads(self.served)


class ChainEngine(ReceivingEngine):
    """Buckets in host memory."""

    end_cls = chain.WorkerEnd


class NcclEngine(ReceivingEngine):
    """Buckets in GPU memory."""

    end_cls = nccl.WorkerEnd


class IpcEngine(ReceivingEngine):
    """Buckets in the memory of a GPU that trainer and server share."""

    end_cls = ipc.WorkerEnd


for _name, _engine in ((CHAIN, ChainEngine), (NCCL, NcclEngine), (IPC, IpcEngine)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _engine)


class WorkerExtension:
    """What the server asks of its workers for updates. Mixed into vLLM's worker (`--worker-extension-cls`) and called by collective_rpc.

    `self` is the vLLM worker. Importing this module registers our engines.
    """

    vllm_config: VllmConfig
    weight_transfer_engine: ReceivingEngine
    get_draft_model: Callable[[], Module | None]

    def rljob_admit(self, attempt: int, senders: Sequence[Mapping[str, Any]], serves: bool) -> OpenedUpdate:
        """See ReceivingEngine.admit."""
        self.weight_transfer_engine.draft = self.get_draft_model()
        return self.weight_transfer_engine.admit(attempt, [Offer(**sender) for sender in senders], serves)

    def rljob_receive(self, update: str, server: str, senders: Sequence[Mapping[str, Any]], apart: bool) -> None:
        """See ReceivingEngine.start."""
        self.weight_transfer_engine.start(update, server, [Offer(**sender) for sender in senders], apart)

    def rljob_verify(self, attempt: int, digests: Sequence[str]) -> None:
        """See ReceivingEngine.verify."""
        self.weight_transfer_engine.verify(attempt, digests)

    def rljob_apply(self) -> None:
        """Apply a verified update."""
        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.apply()

    def rljob_discard(self) -> None:
        """Abandon an update at any point before it is applied."""
        self.weight_transfer_engine.discard()
