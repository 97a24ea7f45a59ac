"""An asynchronous save in megatron's torch_dist format, written by threads of the rank while training continues.

megatron's own asynchronous writers are processes. Forked ones outlive a killed rank and hold its connections open, so that its peers wait instead of
failing; spawned ones take 6 to 29 s to start, and read tensors through handles that need ptrace in a container. The threads use no collectives, so
that only the loop uses the process group.
"""

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.filesystem import _StorageWriterTransforms

from rljob_trainer.checkpoint.files import Hashed, Tally
from rljob_trainer.checkpoint.manifest import Files
from rljob_trainer.checkpoint.staging import Staging


class Writing:
    """One save. Construction and `finish` are collective; in between, each rank waits until it is `done`."""

    def __init__(
        self,
        directory: Path,
        sharded: dict[str, Any],
        live: set[int],
        staging: Staging,
        threads: int,
        results: queue.Queue[Any],
    ) -> None:
        """Copy this rank's part of a sharded state dict, and start to write it.

        Args:
            live: addresses of the storages that training continues to change, which have to be copied
            staging: where to; no other save may use it until this one is done
            threads: each writes a file of its own
            results: the queue from which megatron takes what was written
        """
        self._results = results
        self._request = dist_checkpointing.save(
            sharded,
            str(directory),
            TorchDistSaveShardedStrategy(thread_count=threads),
            async_sharded_save=True,
            async_strategy="mcore",
        )
        # async_fn_args is [rank, buckets, queue]; a rank that writes nothing has no async_fn
        buckets = self._request.async_fn_args[1] if self._request.async_fn else []
        self._buckets = _staged(buckets, live, staging)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._began, self.seconds = time.monotonic(), 0.0
        self.files: Files = {}
        """Files of this rank, by path below the directory's parent. Complete once `done`."""
        self.tally = Tally()
        """Bytes that this rank has written."""
        self.error: Exception | None = None
        """What a thread of this rank raised."""
        self._written: dict[int, Any] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"checkpoint-{i}", daemon=True)
            for i in range(len(self._buckets))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> bool:
        """This rank's part is durable, or has failed."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for at most `seconds`; returns `done`."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return self.done

    def finish(self) -> None:
        """Write the metadata of all parts. All ranks must be done, without errors. Collective."""
        if self._written:
            self._results.put(self._written)
        for function in self._request.finalize_fns:
            function()

    def _run(self, i: int) -> None:
        try:
            self._write(i)
        except Exception as error:
            self.error = error
        self.seconds = max(self.seconds, time.monotonic() - self._began)

    def _write(self, i: int) -> None:
        file = Path(self._buckets[i][0])
        write = filesystem_async.FileSystemWriterAsync.write_preloaded_data
        with Hashed(self.tally) as hashed:
            _, result = write([_Through(hashed)], i, self._buckets[i], None, None, use_fsync=True)
            if isinstance(result, Exception):
                raise result
            self.files[f"{file.parent.name}/{file.name}"] = hashed.fingerprint()
        self._written[i] = result


class _Through(_StorageWriterTransforms):
    """Directs everything that is written to a file through `hashed`."""

    def __init__(self, hashed: Hashed) -> None:
        super().__init__()
        self._hashed = hashed

    def transform_save_stream(self, write_item: Any, raw_stream: Any) -> Any:
        self._hashed.stream = raw_stream
        return super().transform_save_stream(write_item, self._hashed)  # type: ignore[arg-type]


WriteBucket = tuple[str, str, tuple[list[Any], list[tuple[Any, torch.Tensor]]]]
"""Path and name of a file, and what it gets: bytes and tensors, each with its description."""


def _staged(buckets: Sequence[WriteBucket], live: set[int], staging: Staging) -> list[WriteBucket]:
    """The buckets with tensors in host memory that training does not change. megatron has copied only views already (filesystem_async.py:153)."""

    def is_live(tensor: torch.Tensor) -> bool:
        return tensor.is_cuda or tensor.untyped_storage().data_ptr() in live

    copies = iter(staging.copies([t for _, _, (_, tensors) in buckets for _, t in tensors if is_live(t)]))
    staged = []
    for file, name, (data, tensors) in buckets:
        held = [(item, next(copies) if is_live(t) else t) for item, t in tensors]
        staged.append((file, name, (data, held)))
    return staged
