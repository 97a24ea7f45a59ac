"""Host memory that saves copy tensors into, made ready in a thread while training begins.

A GPU copies at full rate into pinned memory only, and pinning takes much longer than copying (docs/performance.md#checkpoints). torch's own allocator
would pin the next power of two of every tensor, when the first save needs it, and keep it until the process ends.
"""

import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch

PIECE = 2**28
"""Bytes that are pinned at a time, so that the training thread never waits long for the driver."""
ALIGNMENT = 64


class Staging:
    """The memory of one rank. Not more than one save may use it at a time."""

    def __init__(self, piece: int = PIECE) -> None:
        """`piece`: a multiple of the page size."""
        addresses = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // piece * piece
        self._map = mmap.mmap(-1, addresses, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._map.madvise(mmap.MADV_DONTFORK)  # a fork would have the device write to the child's copies
        self._piece = piece
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.size = 0
        """Bytes that are ready, whole pieces from the beginning of the map."""

    @property
    def is_ready(self) -> bool:
        """What was to be prepared is ready, or has failed."""
        return not (self._thread and self._thread.is_alive())

    def prepare(self, size: int) -> None:
        """Begin to make `size` bytes ready, in a thread, and a piece more for alignment and megatron's padding."""
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        wanted = size + self._piece
        self._thread = threading.Thread(target=self._make_ready, args=(wanted, device), name="staging", daemon=True)
        self._thread.start()

    def shrink(self, size: int) -> None:
        """Give all memory back but about `size` bytes."""
        self._wait()
        kept = min(self.size, -(-size // self._piece) * self._piece)
        if kept < self.size:
            for start in range(kept, self.size, self._piece) if torch.cuda.is_available() else ():
                torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._bytes(start).data_ptr()))
            self._map.madvise(mmap.MADV_DONTNEED, kept, self.size - kept)
            self.size = kept

    def copies(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of `tensors`, each with a storage of its own size, because torch.save writes whole storages. They are valid until the next call.

        From a GPU the copies are asynchronous. Raises what the thread raised, for example CudaError.
        """
        starts = list(accumulate((-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in tensors), initial=0))
        self._wait()
        self._extend(starts[-1])
        return [self._copy(tensor, start) for tensor, start in zip(tensors, starts, strict=False)]

    def _copy(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        """Piece by piece: one call of CUDA cannot copy to memory that was pinned by several."""
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        flat = tensor.detach().contiguous().view(-1)
        copy = torch.frombuffer(self._map, dtype=tensor.dtype, count=len(flat), offset=start)
        source, target = flat.view(torch.uint8), copy.view(torch.uint8)
        for begin, end in self._within_pieces(start, start + len(source)):
            target[begin:end].copy_(source[begin:end], non_blocking=True)
        return copy.view(tensor.shape)

    def _within_pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of the bytes from `start` to `end` that lie in one piece each, relative to `start`."""
        ends = range((start // self._piece + 1) * self._piece, end, self._piece)
        yield from pairwise(at - start for at in (start, *ends, end))

    def _wait(self) -> None:
        if self._thread:
            self._thread.join()
        if self._error:
            raise self._error

    def _make_ready(self, size: int, device: int | None) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            self._extend(size)
        except Exception as error:
            self._error = error

    def _extend(self, size: int) -> None:
        while self.size < size:
            self._pin(self._bytes(self.size).zero_())
            self.size += self._piece

    def _pin(self, piece: torch.Tensor) -> None:
        """Its pages are there already: the driver would make them one by one."""
        if torch.cuda.is_available():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(piece.data_ptr(), piece.nbytes, 0))

    def _bytes(self, start: int) -> torch.Tensor:
        """The piece that begins at `start`. Raises ValueError beyond what the host has."""
        return torch.frombuffer(self._map, dtype=torch.uint8, count=self._piece, offset=start)
