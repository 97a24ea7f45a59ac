"""An asynchronous save in megatron's torch_dist format, written by threads of the rank while training continues.

megatron's own asynchronous writers are processes. Forked ones outlive a killed rank and hold its connections open, so that its peers wait instead of
failing; spawned ones take 6 to 29 s to start, and read tensors through handles that need ptrace in a container. The threads use no collectives, so
that only the loop uses the process group.
"""

import io
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories, is_main_replica
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

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
        _require_writers(sharded)
        self._request = dist_checkpointing.save(
            sharded,
            str(directory),
            TorchDistSaveShardedStrategy(thread_count=threads),
            validate_access_integrity=False,
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
        self.error: BaseException | None = None
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
            self.error = _root(error)
        self.seconds = max(self.seconds, time.monotonic() - self._began)

    def _write(self, i: int) -> None:
        path, name, (data, tensors) = self._buckets[i]
        file = Path(path)
        with Hashed(file, self.tally) as hashed:
            results = [_write_record(hashed, name, item, value) for item, value in (*data, *tensors)]
            self.files[f"{file.parent.name}/{file.name}"] = hashed.fingerprint()
        self._written[i] = results


def _require_writers(sharded: dict[str, Any]) -> None:
    """Each tensor that a rank holds is written, and no place of one by two ranks, which torch would not notice. That of each all is written torch
    checks on rank 0, which gets all plans. megatron's check would tell every rank the places of all ranks' tensors. Collective. Raises
    CheckpointingException on rank 0."""
    apply_factories(sharded)
    parts = [part for part in nested_values(sharded) if isinstance(part, ShardedTensor)]
    own = [(part.key, part.global_offset) for part in parts if is_main_replica(part.replica_id)], {p.key for p in parts}
    all_ranks: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, all_ranks)
    if all_ranks:
        places = Counter(place for written, _ in all_ranks for place in written)
        held = set().union(*(keys for _, keys in all_ranks))
        missing = held - {key for key, _ in places}
        if missing:
            raise CheckpointingException(f"no rank writes {min(missing)}")
        twice = [key for (key, _), count in places.items() if count > 1]
        if twice:
            raise CheckpointingException(f"two ranks write {min(twice)}")


def _write_record(hashed: Hashed, name: str, item: WriteItem, value: io.BytesIO | torch.Tensor) -> WriteResult:
    """Append one to the file `name`, as torch does (distributed/checkpoint/filesystem.py, _write_item), which asks the file system for its place
    before and after each, and flushes."""
    start = hashed.bytes
    if isinstance(value, torch.Tensor):
        torch.save(value, hashed)  # type: ignore[arg-type]
    else:
        hashed.write(value.getbuffer())
    length = hashed.bytes - start
    return WriteResult(item.index, length, _StorageInfo(name, start, length))


def _root(error: BaseException) -> BaseException:
    """The first exception of a chain: torch's archive writer, when it is closed after a failed write, raises a misleading one."""
    while before := error.__cause__ or error.__context__:
        error = before
    return error


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
