"""Host memory that saves copy tensors into, made ready in a thread while training begins.

A GPU copies at full rate into pinned memory only, and pinning takes much longer than copying (docs/performance.md#checkpoints). torch's own allocator
would pin the next power of two of every tensor, when the first save needs it, and keep it until the process ends.
"""

import logging
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate

import torch

from rljob_trainer.checkpoint.host_memory import BLOCK, bytes_of, within_blocks

ALIGNMENT = 64
MAP_NORESERVE = 0x4000
"""Addresses only, which count as memory once they are used (mmap(2)); `mmap` has no name for it."""

log = logging.getLogger(__name__)


class Staging:
    """The memory of one rank. Not more than one save may use it at a time.

    Without a GPU nothing is pinned, and memory is taken as it is written to.
    """

    def __init__(self, block: int = BLOCK) -> None:
        """`block`: bytes that are pinned at a time, a multiple of the page size."""
        self._block = block
        self._thread: threading.Thread | None = None
        self._wanted = 0
        self.size = 0
        """Bytes that are ready, whole blocks from the beginning of the map."""

    @property
    def is_prepared(self) -> bool:
        """`prepare` was called."""
        return self._thread is not None

    @property
    def is_ready(self) -> bool:
        """What was to be prepared is ready, or has failed."""
        return not (self._thread and self._thread.is_alive())

    def prepare(self, size: int) -> None:
        """Begin to make `size` bytes ready in a thread, and 1 % more for alignment and megatron's padding. Once only.

        Where it fails, the save that needs the memory tries again. A process must not end the ordinary way before the thread has: it would abort.
        Ranks end by os._exit.
        """
        assert not self._thread
        self._wanted = size + size // 100
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = threading.Thread(target=self._make_ready, args=(device,), name="staging", daemon=True)
        self._thread.start()

    def shrink(self, size: int) -> None:
        """Give all memory back but about `size` bytes, and make no more ready."""
        self._wanted = size
        self._wait()
        kept = min(self.size, -(-size // self._block) * self._block)
        if kept < self.size:
            for start in range(kept, self.size, self._block) if torch.cuda.is_available() else ():
                torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._bytes(start).data_ptr()))
            self._map.madvise(mmap.MADV_DONTNEED, kept, self.size - kept)
            self.size = kept

    def copies(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of `tensors`, each with a storage of its own size, because torch.save writes whole storages. They are valid until the next call.

        From a GPU the copies are asynchronous. Raises CudaError when memory cannot be pinned.
        """
        starts = list(accumulate((-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in tensors), initial=0))
        self._wait()
        self._wanted = starts[-1]
        self._extend()
        return [self._copy(tensor, start) for tensor, start in zip(tensors, starts, strict=False)]

    def _copy(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        """Block by block: one call of CUDA cannot copy to memory that was pinned by several."""
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        copy = torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        source, target = bytes_of(tensor.contiguous()), bytes_of(copy)
        for begin, end in within_blocks(start, start + len(source), self._block):
            target[begin - start : end - start].copy_(source[begin - start : end - start], non_blocking=True)
        return copy.view(tensor.shape)

    @cached_property
    def _map(self) -> mmap.mmap:
        """Addresses for as much as the host has."""
        size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // self._block * self._block
        made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
        made.madvise(mmap.MADV_DONTFORK)  # after a fork the device could write to pages that are the child's
        with suppress(OSError):  # a kernel without huge pages
            made.madvise(mmap.MADV_HUGEPAGE)
        return made

    def _wait(self) -> None:
        if self._thread:
            self._thread.join()

    def _make_ready(self, device: int | None) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            self._extend()
        except Exception:
            log.exception("no host memory could be made ready for saves; the first one tries again")

    def _extend(self) -> None:
        while self.size < self._wanted:
            self._pin(self._bytes(self.size))
            self.size += self._block

    def _pin(self, block: torch.Tensor) -> None:
        """Zeros make its pages, faster than the driver would one by one."""
        if torch.cuda.is_available():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(block.zero_().data_ptr(), block.nbytes, 0))

    def _bytes(self, start: int) -> torch.Tensor:
        """The block that begins at `start`. Raises ValueError beyond what the host has."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=self._block, offset=start)
