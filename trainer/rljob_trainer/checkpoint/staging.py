"""Pinned host memory: for tensors that are offloaded from a device, and for what saves copy, made ready in a thread while training begins.

A GPU copies at full rate to and from pinned memory only, and pinning takes much longer than copying (docs/evidence/gpus.md#checkpoints). torch
rounds every allocation up to a power of two (ATen/core/CachingHostAllocator.h, `allocate`): 17 GiB would take 32, pinned when the first save
needs them and kept until the process ends. Blocks whose size is a power of two waste nothing.
"""

import logging
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise

import torch

BLOCK = 2**26
"""Bytes in a block, about a millisecond of copying. So no other thread waits long for the driver while one is pinned."""
ALIGNMENT = 64
MAP_NORESERVE = 0x4000
"""Addresses only, which count as memory once they are used (mmap(2)); `mmap` has no name for it."""

log = logging.getLogger(__name__)


class PinnedMemory:
    """A byte array that grows as needed. Blocks are never freed, because pinning takes longer than copying."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[torch.Tensor] = []

    @property
    def size(self) -> int:
        return self._block * len(self._blocks)

    def write(self, at: int, source: torch.Tensor) -> int:
        """`source`: [n] uint8. Returns where the next one may begin."""
        for start, piece in self._pieces(at, len(source)):
            piece.copy_(source[start : start + len(piece)])
        return at + len(source)

    def read(self, at: int, target: torch.Tensor) -> int:
        """`target`: [n] uint8, is overwritten. Returns where the next one begins."""
        for start, piece in self._pieces(at, len(target)):
            target[start : start + len(piece)].copy_(piece)
        return at + len(target)

    def _pieces(self, at: int, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (offset in the caller's bytes, slice of a block) for all blocks in which these bytes lie."""
        for begin, end in within_blocks(at, at + size, self._block):
            number, offset = divmod(begin, self._block)
            while number >= len(self._blocks):
                self._blocks.append(torch.empty(self._block, dtype=torch.uint8, pin_memory=torch.cuda.is_available()))
            yield begin - at, self._blocks[number][offset : offset + end - begin]


def within_blocks(start: int, end: int, block: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of the bytes from `start` to `end` that lie in one block each."""
    yield from pairwise((start, *range((start // block + 1) * block, end, block), end) if start < end else ())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """[n] uint8: the same memory. Raises RuntimeError for a tensor that is not contiguous."""
    return tensor.detach().view(-1).view(torch.uint8)


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
