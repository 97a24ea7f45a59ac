"""Packs tensors into buckets of bytes, verifies them, and computes the digest of a whole policy."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights.fingerprint import fingerprints, padded


class CorruptBucketError(ValueError):
    """A bucket's bytes do not match the sender's description."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket, by its Hugging Face name."""

    name: str
    dtype: str
    """As torch spells it without the prefix: `float32`, `bfloat16`."""
    shape: tuple[int, ...]
    fingerprint: str
    """Fingerprint of the tensor's bytes in row-major order (fingerprint.py)."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def as_json(self) -> dict[str, Any]:
        """Written by hand: dataclasses.asdict takes ten times as long, and every replica gets an entry for every tensor."""
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "fingerprint": self.fingerprint}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Entry":
        return Entry(**data | {"shape": tuple(data["shape"])})


@dataclass(frozen=True, slots=True)
class Bucket:
    """Concatenated tensors, each padded with zeros to `padded(size)`."""

    entries: tuple[Entry, ...]
    payload: Tensor
    """uint8, one dimension."""


def pack(tensors: Iterable[tuple[str, Tensor]], limit: int, device: torch.device) -> Iterator[Bucket]:
    """Yields buckets on `device` of at most `limit` bytes; a larger tensor gets a bucket of its own.

    The iterable is consumed once, in order. Its tensors may be on any device, and need to be valid only until the next one is requested. A yielded
    payload is complete on all CUDA streams.
    """
    builder: _BucketBuilder | None = None
    for name, tensor in tensors:
        if builder and not builder.has_room(tensor.nbytes):
            yield builder.bucket()
            builder = None
        builder = builder or _BucketBuilder(max(limit, padded(tensor.nbytes)), device)
        builder.add(name, tensor.detach())
    if builder:
        yield builder.bucket()


class _BucketBuilder:
    """A bucket that is being packed."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._used = 0
        self._payload = torch.zeros(capacity, dtype=torch.uint8, device=device)
        self._parts: list[tuple[str, Tensor]] = []

    def has_room(self, size: int) -> bool:
        return self._used + padded(size) <= self._payload.numel()

    def add(self, name: str, tensor: Tensor) -> None:
        room = self._payload[self._used : self._used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self._parts.append((name, room.copy_(tensor)))
        self._used += padded(tensor.nbytes)

    def bucket(self) -> Bucket:
        payload = self._payload[: self._used]
        marks = fingerprints(payload, [room.nbytes for _, room in self._parts])  # synchronizes with the device
        entries = (
            Entry(name, str(room.dtype).removeprefix("torch."), tuple(room.shape), mark)
            for (name, room), mark in zip(self._parts, marks, strict=True)
        )
        return Bucket(tuple(entries), payload)


def divided[K](buckets: Iterable[Bucket], key: Callable[[str], K]) -> Iterator[tuple[K, Bucket]]:
    """Yields each bucket, or what it has for each `key` of its tensors' names. With what is under way, that is no more than two buckets."""
    for bucket in buckets:
        found: dict[K, list[int]] = {}
        for i, entry in enumerate(bucket.entries):
            found.setdefault(key(entry.name), []).append(i)
        yield from ((kind, _only(bucket, places)) for kind, places in found.items())
        del bucket


def _only(bucket: Bucket, places: Sequence[int]) -> Bucket:
    """The tensors at these places. The payload is complete on all CUDA streams."""
    if len(places) == len(bucket.entries):
        return bucket
    rooms = bucket.payload.split([padded(entry.size) for entry in bucket.entries])
    payload = torch.cat([rooms[i] for i in places])
    if payload.is_cuda:
        torch.cuda.current_stream().synchronize()
    return Bucket(tuple(bucket.entries[i] for i in places), payload)


def payload_size(sizes: Iterable[int]) -> int:
    """Bytes of a payload with tensors of `sizes` bytes."""
    return sum(map(padded, sizes))


def unpack(entries: Sequence[Entry], payload: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a payload, as views of it. Raises CorruptBucketError for the first whose fingerprint differs."""
    sizes = [entry.size for entry in entries]
    if payload.numel() != payload_size(sizes):
        raise CorruptBucketError(f"{payload.numel()} of {payload_size(sizes)} bytes")
    for entry, part, found in zip(entries, _parts(payload, sizes), fingerprints(payload, sizes), strict=True):
        if found != entry.fingerprint:
            raise CorruptBucketError(f"{entry.name}: checksum differs from the sender's")
        yield entry.name, part.view(torch_dtype(entry.dtype)).view(entry.shape)


def digest(entries: Iterable[Entry]) -> str:
    """The sum of the sha256 of name, type, shape and fingerprint of all tensors, modulo 2^256: independent of packing and order, and the digest of a
    whole is the `total` of the digests of its parts, so no process needs to see a whole policy. Not a defence against an adversary."""
    lines = (f"{e.name} {e.dtype} {list(e.shape)} {e.fingerprint}\n" for e in entries)
    return total(hashlib.sha256(line.encode()).hexdigest() for line in lines)


def total(digests: Iterable[str]) -> str:
    """The digest of a policy from those of disjoint parts."""
    return f"{sum(int(part, 16) for part in digests) % 2**256:064x}"


def torch_dtype(name: str) -> torch.dtype:
    """Raises CorruptBucketError for a name that torch does not know."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptBucketError(f"{name!r} is not a tensor type")
    return dtype


def _parts(payload: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """The bytes of each tensor in the payload, without padding."""
    rooms = payload.split([padded(size) for size in sizes])
    return (room[:size] for room, size in zip(rooms, sizes, strict=True))
