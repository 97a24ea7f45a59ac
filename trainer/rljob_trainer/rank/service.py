"""The ranks' loop of `task: service`: they do the work of clients together, one piece at a time, in the order in which it comes.

Rank 0 alone is connected to the driver. It broadcasts each body, which all ranks read: bodies are small next to what they cost (5 MB at most for some
thousand sequences), and so every rank refuses the same work.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import numpy as np

from rljob_api.protocol import Control
from rljob_trainer.checkpoint.checks import prove_shared
from rljob_trainer.checkpoint.files import give_name, make_directory, sync
from rljob_trainer.checkpoint.saving import CheckpointPart
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.megatron.huggingface import write_adapters
from rljob_trainer.megatron.service import ServiceEngine
from rljob_trainer.rank.driver_client import ServiceDriverClient, heartbeat_of
from rljob_trainer.rank.whole_snapshots import WholeSnapshots
from rljob_trainer.wire.arrays import raw
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.calls import TaskOutcome
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.rollout_server import DIGEST, snapshot_digest
from rljob_trainer.wire.service import (
    CreateModel,
    ForwardBackward,
    KeepModels,
    LoadState,
    ModelWork,
    NextWork,
    OptimStep,
    RefusedWork,
    SaveForSampler,
    SaveState,
    ServePolicy,
    Work,
    WorkFailure,
    WorkResult,
)

METADATA = ".metadata"
"""The last file of a torch_dist directory."""

log = logging.getLogger(__name__)


def run(directory: Path, control: Control) -> TaskOutcome:
    """Do the work of clients until the job is over. Returns how it ended. Raises ConfigurationError, and DriverLost on rank 0."""
    spec, seconds = control.spec, control.spec.lifecycle.stall_timeout_seconds
    ranks = Ranks(seconds)
    if ranks.is_first:
        make_directory(Path(spec.checkpoint.path))
    prove_shared(Path(spec.checkpoint.path), ranks)
    client = ServiceDriverClient.connect(directory, seconds) if ranks.is_first else None
    engine = ServiceEngine(spec, heartbeat_of(client))
    if client:
        client.ready(engine.backend)
    whole = None if spec.adapters else WholeSnapshots(control, ranks, engine, client)
    outcome = ServiceRanks(ranks, client, engine, Path(spec.model.path), whole).until_over()
    ranks.barrier()
    if client:
        client.end()
    return outcome


class ServiceRanks:
    """What the ranks do with each piece of work. Every method is collective."""

    def __init__(
        self,
        ranks: Ranks,
        client: ServiceDriverClient | None,
        engine: ServiceEngine,
        base: Path,
        whole: WholeSnapshots | None,
    ) -> None:
        """`base`: directory of the base model; `whole`: None where adapters are trained."""
        self._ranks, self._client, self._engine, self._base, self._whole = ranks, client, engine, base, whole

    def until_over(self) -> TaskOutcome:
        """Do the work that comes until the driver says that the job is over. Returns how it ended."""
        while True:
            answer: NextWork = self._ranks.broadcast(self._client.next() if self._client else None)
            if "work" in answer:
                result = self._result(decode_work(self._body(answer["work"])))
                if self._client:
                    self._client.done(encode(result))
            elif "over" in answer:
                return answer["over"]

    def _body(self, size: int) -> memoryview:
        block: Array = np.empty(size, np.uint8)
        if self._client:
            self._client.read_into(raw(block))
        self._ranks.broadcast_arrays({"work": block})
        return raw(block)

    def _result(self, work: Work) -> WorkResult | WorkFailure:
        if isinstance(work, KeepModels):
            self._engine.keep(work.models)
            return WorkResult()
        try:
            return self._do(work)
        except RefusedWork as error:
            log.info("refused %s: %s", _named(work), error)
            return WorkFailure(message=str(error), category=error.category)

    def _do(self, work: ModelWork | ServePolicy) -> WorkResult:
        match work:
            case ServePolicy():
                assert self._whole, "servers of adapters read them"
                return self._whole.serve(work)
            case CreateModel():
                return self._engine.create(work)
            case ForwardBackward():
                return self._pass(work)
            case OptimStep():
                return self._engine.optim_step(work)
            case SaveState():
                self._write(Path(work.path), lambda scratch: self._save(work, scratch))
                return WorkResult()
            case LoadState():
                return self._load(work)
            case SaveForSampler():
                self._write(Path(work.path), lambda scratch: self._export(work, scratch))
                return WorkResult()
            case _:
                assert_never(work)

    def _pass(self, work: ForwardBackward) -> WorkResult:
        result = self._engine.forward_backward(work)
        if self._whole:
            self._whole.saw(work)
        return result

    def _save(self, work: SaveState, scratch: Path) -> None:
        part = CheckpointPart(_ClientSaving(self._engine, work.model), self._ranks)
        part.begin(work.seq, scratch, alongside=False)
        part.complete(wait=True)

    def _load(self, work: LoadState) -> WorkResult:
        if not self._ranks.all((Path(work.path) / METADATA).is_file()):
            raise RefusedWork(f"{work.path} holds no state of a model")
        return self._engine.load(work)

    def _export(self, work: SaveForSampler, scratch: Path) -> None:
        if self._whole:
            self._whole.write(work.model, scratch)
            return
        settings, tensors = self._engine.adapters(work.model)
        write_adapters(tensors, settings, self._base, scratch)
        if self._client:
            (scratch / DIGEST).write_text(snapshot_digest(scratch))

    def _write(self, target: Path, write: Callable[[Path], None]) -> None:
        """Write a directory under a temporary name, and rename it once it is complete and durable. Raises RefusedWork when there is one."""
        if self._ranks.broadcast(target.exists()):
            raise RefusedWork(f"{target} exists already")
        scratch = target.with_name(f".{target.name}.tmp")
        if self._client:
            make_directory(target.parent)
            shutil.rmtree(scratch, ignore_errors=True)
        self._ranks.barrier()
        write(scratch)
        if self._client:
            sync(scratch, self._engine.heartbeat)
            give_name(scratch, target)
        self._ranks.barrier()


def _named(work: ModelWork | ServePolicy) -> str:
    """A piece of work, for the log."""
    what = work.path if isinstance(work, ServePolicy) else f"{work.seq} of {work.model}"
    return f"{type(work).__name__} {what}"


class _ClientSaving:
    """A client's model, as checkpoint.saving saves it."""

    def __init__(self, engine: ServiceEngine, model: str) -> None:
        self._engine, self._model = engine, model
        self.layout, self.heartbeat = engine.layout, engine.heartbeat

    def save(self, directory: Path, alongside: bool) -> Writing:
        return self._engine.save(self._model, directory)
