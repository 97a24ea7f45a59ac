"""A worker of a server in a process of its own: vLLM's model and parallel state, and our reception, without an engine around them."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from rljob_trainer.server.weights.reception import Reception
from rljob_trainer.server.weights.source import WorkerPlace
from rljob_trainer.wire.weights import chain
from rljob_trainer.wire.weights.door import Door
from rljob_trainer.wire.weights.protocol import Offer, ServerWorker
from rljob_trainer.wire.weights.slices import Needs
from trainer.rank.standing import in_another_process
from trainer.traffic import Traffic

HERE = "127.0.0.1"


class Server(NamedTuple):
    """How one is laid out."""

    uid: str
    tensor: int
    experts: bool
    """Workers divide experts, not their matrices."""
    port: int
    """Where they meet."""
    pipeline: int = 1
    copies: int = 1
    """Data-parallel ones."""

    @property
    def workers(self) -> int:
        return self.tensor * self.pipeline * self.copies


class Held(NamedTuple):
    """What a worker has after an update."""

    digest: str
    different: list[str]
    """Parameters that are not what a server loads from the files of the same policy."""
    copy: int
    """Bytes of its second copy."""
    parameters: int
    """Bytes of what it computes with."""
    received: int
    """Bytes on its connections with senders."""


class WorkerApart:
    """The other end of a worker's pipes. Workers of a server wait for each other, so start all before any is asked."""

    def __init__(self, server: Server, rank: int, answers: IO[str], asks: IO[str]) -> None:
        self.server, self._rank, self._answers, self._asks = server, rank, answers, asks

    def member(self) -> tuple[ServerWorker, Needs]:
        """The worker, and what it needs."""
        door, own = json.loads(self._answers.readline())
        return ServerWorker(self.server.uid, self._rank, *door), Needs.from_json(own)

    def receive(self, offers: list[Offer], files: Path) -> None:
        """Begin to receive a policy from senders. `files`: of the same one."""
        print(json.dumps([[[o.address, o.port] for o in offers], str(files)]), file=self._asks, flush=True)

    def held(self) -> Held:
        return Held(*json.loads(self._answers.readline()))


@contextmanager
def worker_apart(server: Server, rank: int, model: Path) -> Iterator[WorkerApart]:
    """A worker that loads `model`, and then waits to be asked."""
    (asks, ask), (answers, answer) = os.pipe(), os.pipe()

    def serve() -> None:
        with os.fdopen(asks) as reader, os.fdopen(answer, "w") as writer:
            _serve(server, rank, model, reader, writer)

    child = in_another_process(serve)
    os.close(asks)
    os.close(answer)
    try:
        with os.fdopen(answers) as reader, os.fdopen(ask, "w") as writer:
            yield WorkerApart(server, rank, reader, writer)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(server: Server, rank: int, model: Path, asks: IO[str], answers: IO[str]) -> None:
    from rljob_trainer.server.weights.expected import ExpectedTensors
    from rljob_trainer.server.weights.needs import needs
    from rljob_trainer.server.weights.shadow import Shadow
    from tests.trainer.server.vllm_models import CPU, engine, loaded_from

    os.environ["VLLM_DIST_IDENT"] = str(server.port)  # what vLLM's executor sets
    with engine(model, rank, server.tensor, server.port, server.experts, server.pipeline, server.copies) as config:
        serves, door = loaded_from(model, config), Door(HERE)
        shadow = Shadow(serves, config.model_config, CPU, keeps=True)
        described = ExpectedTensors.of(model, "float32").described
        own = Needs.of(needs(serves, config.model_config, described))
        print(json.dumps([door.address, own.as_json()]), file=answers, flush=True)
        offers, files = json.loads(asks.readline())
        digest, received = _receive(shadow, WorkerPlace(server.uid, rank, door, CPU), [Offer(*o) for o in offers])
        found = dict(serves.named_parameters())
        fresh = dict(loaded_from(Path(files), config).named_parameters())
        assert found.keys() == fresh.keys()
        different = [name for name, tensor in found.items() if not torch.equal(tensor, fresh[name])]
        held = Held(digest, different, shadow.bytes, sum(p.nbytes for p in found.values()), received)
        print(json.dumps(held), file=answers, flush=True)
        asks.readline()


def _receive(shadow: Any, place: WorkerPlace, offers: list[Offer]) -> tuple[str, int]:
    """The digest of the update, and bytes that came for it."""
    reception = Reception(place, "u", chain.WorkerEnd, lambda entries: None, shadow.load)
    reception.start(offers, {})
    _, digest = reception.result(300)
    shadow.check()
    with torch.no_grad():
        shadow.apply()
    return digest, sum(
        Traffic.of(end._before).received  # type: ignore[union-attr]
        for connection in reception.connections.values()
        for end in connection.groups.values()
    )
