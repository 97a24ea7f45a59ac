"""Reads the weights of the job's models on a pod that stands by, so that its node has them in the page cache when its ranks load them.

Only the safetensors files that ranks would read, once, one after the other, and no more than half of the memory that the pod can have: what does not
fit would push out what was read before. A Megatron checkpoint is not read, since each rank needs a part of it that only the rank knows.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import memory_limit
from rljob_trainer.model_files import Damaged, weight_files
from rljob_trainer.sources.record import until_fetched

CHUNK, GIB = 16 * 2**20, 2**30
"""Bytes of one read, after which a pod that has become a member stops; bytes of a GiB."""

log = logging.getLogger(__name__)


class ReadAhead:
    """`start` whenever the pod stands by, which reads each model once; `stop` when the pod becomes a member or ends."""

    def __init__(self) -> None:
        self._done = set[Path]()
        """Directories that were read."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = threading.Event()

    def start(self, spec: RLJobSpec) -> None:
        wanted = [path for path in model_directories(spec) if path not in self._done]
        if wanted and (self._task is None or self._task.done()):
            self._stopped = threading.Event()
            self._task = asyncio.create_task(self._read(spec, wanted))

    def stop(self) -> None:
        self._stopped.set()
        if self._task:
            self._task.cancel()

    async def _read(self, spec: RLJobSpec, directories: list[Path]) -> None:
        """What cannot be read is left to the ranks, which say why."""
        await until_fetched(spec.sources.values)
        try:
            await asyncio.to_thread(read, directories, most_bytes(), self._stopped)
        except (OSError, Damaged) as error:
            log.warning("standing by: model files are not read ahead: %s", error)
        else:
            self._done.update(directories)


def model_directories(spec: RLJobSpec) -> list[Path]:
    """Directories with the weights of all models that the trainer's ranks hold."""
    models = [spec.model, *spec.shared.values()]
    paths = [getattr(m, "path", None) for m in models if not getattr(m, "megatron_checkpoint", None)]
    return list(dict.fromkeys(Path(path) for path in paths if path))


def most_bytes() -> int:
    """Half of what the pod may use, or of what its node has free."""
    free = psutil.virtual_memory().available
    return min(memory_limit() or free, free) // 2


def read(directories: Iterable[Path], limit: int, stopped: threading.Event) -> int:
    """Reads the weights in these directories until `stopped`, `limit` bytes at most. Returns how many it has read. Raises OSError, Damaged."""
    files = [file for path in directories for file in weight_files(path)]
    total, began, done = sum(file.stat().st_size for file in files), time.monotonic(), 0
    for file in files:
        done += _read_file(file, limit - done, stopped)
    took = time.monotonic() - began
    log.info(
        "standing by: read %.2f of %.2f GiB in %d model files ahead in %.1f s",
        done / GIB,
        total / GIB,
        len(files),
        took,
    )
    return done


def _read_file(file: Path, limit: int, stopped: threading.Event) -> int:
    buffer, done = memoryview(bytearray(CHUNK)), 0
    with file.open("rb", buffering=0) as stream:
        while done < limit and not stopped.is_set():
            count = stream.readinto(buffer[: limit - done])
            if not count:
                break
            done += count
    return done
