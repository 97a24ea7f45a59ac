"""Has every worker log the digest of its parameters when an update is opened: those that it has loaded, or that the update before has left; and, when
one is applied, how many bytes have come for it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_trainer.server.weights.engine import WorkerExtension
from trainer.traffic import Traffic

LOGGED = re.compile(r"PARAMETERS worker (\d+): (\w+)")

RECEIVED = re.compile(r"RECEIVED worker (\d+): (\d+) over (\d+)")

admit, apply = WorkerExtension.rljob_admit, WorkerExtension.rljob_apply


def logged(log: Path) -> dict[int, list[str]]:
    """[worker] -> digests, in the order of updates."""
    found: dict[int, list[str]] = {}
    for worker, digest in LOGGED.findall(log.read_text()):
        found.setdefault(int(worker), []).append(digest)
    return found


def _logging(self: Any, attempt: int, senders: Sequence[Mapping[str, Any]], serves: bool) -> Any:
    digest, model = hashlib.sha256(), self.model_runner.model
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda named: named[0]):
        digest.update(name.encode() + tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
    print(f"PARAMETERS worker {self.weight_transfer_engine.worker}: {digest.hexdigest()}", flush=True)
    return admit(self, attempt, senders, serves)


def received(log: Path) -> dict[int, list[tuple[int, int]]]:
    """[worker] -> bytes on its connections with senders since it started, and how many these are, in the order of updates."""
    found: dict[int, list[tuple[int, int]]] = {}
    for worker, size, connections in RECEIVED.findall(log.read_text()):
        found.setdefault(int(worker), []).append((int(size), int(connections)))
    return found


def _counting(self: Any) -> None:
    engine = self.weight_transfer_engine
    apply(self)
    ends = [end for connection in engine._connections.values() for end in connection.groups.values()]
    size = sum(Traffic.of(end._before).received for end in ends)
    print(f"RECEIVED worker {engine.worker}: {size} over {len(ends)}", flush=True)


WorkerExtension.rljob_admit = _logging  # type: ignore[method-assign]
WorkerExtension.rljob_apply = _counting  # type: ignore[method-assign]
