"""Has every worker log the digest of its parameters when an update is opened: those that it has loaded, or that the update before has left."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rljob_trainer.server.weights.engine import WorkerExtension

LOGGED = re.compile(r"PARAMETERS worker (\d+): (\w+)")

admit = WorkerExtension.rljob_admit


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


WorkerExtension.rljob_admit = _logging  # type: ignore[method-assign]
