"""Tensors as buckets of bytes: packing, verification, and the digest of a whole policy."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BUCKET_BYTES = 64 * 2**20
"""A bucket is closed once it holds so much; a larger tensor has one for itself."""


class CorruptBucketError(ValueError):
    """Bytes that are not what their sender described."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket, by its Hugging Face name."""

    name: str
    dtype: str
    """As torch spells it without the prefix: `float32`, `bfloat16`."""
    shape: tuple[int, ...]
    sha256: str
    """Of the tensor's bytes in row-major order, hexadecimal."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors laid end to end."""

    entries: tuple[Entry, ...]
    payload: Tensor
    """uint8, one dimension, in host memory."""


def pack(tensors: Iterable[tuple[str, Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Buckets of at least `limit` bytes, except the last. The iterable is consumed once, in order; a tensor may live anywhere."""
    entries: list[Entry] = []
    parts: list[Tensor] = []
    for name, tensor in tensors:
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        entries.append(Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _sha256(data)))
        parts.append(data)
        if sum(p.numel() for p in parts) >= limit:
            yield Bucket(tuple(entries), torch.cat(parts))
            entries, parts = [], []
    if entries:
        yield Bucket(tuple(entries), torch.cat(parts))


def unpack(entries: Iterable[Entry], payload: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a payload, each in memory of its own. Raises CorruptBucketError for the first that fails its checksum."""
    start = 0
    for entry in entries:
        data = payload[start : start + entry.size].clone()
        start += entry.size
        if data.numel() != entry.size or _sha256(data) != entry.sha256:
            raise CorruptBucketError(
                f"{entry.name}: {data.numel()} of {entry.size} bytes, checksum differs from the sender's"
            )
        yield entry.name, data.view(torch_dtype(entry.dtype)).view(entry.shape)


def digest(entries: Iterable[Entry]) -> str:
    """sha256 over name, type, shape and checksum of every tensor, in order of names: it does not depend on how they were packed."""
    total = hashlib.sha256()
    for e in sorted(entries, key=lambda e: e.name):
        total.update(f"{e.name} {e.dtype} {list(e.shape)} {e.sha256}\n".encode())
    return total.hexdigest()


def torch_dtype(name: str) -> torch.dtype:
    """Raises CorruptBucketError for a name that torch does not know."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptBucketError(f"{name!r} is not a tensor type")
    return dtype


def _sha256(data: Tensor) -> str:
    return hashlib.sha256(data.numpy()).hexdigest()
