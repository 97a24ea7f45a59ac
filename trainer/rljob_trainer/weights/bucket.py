"""Tensors as buckets of bytes: packing, verification, and the digest of a whole policy."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.weights.fingerprint import fingerprints, padded


class CorruptBucketError(ValueError):
    """Bytes that are not what their sender described."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket, by its Hugging Face name."""

    name: str
    dtype: str
    """As torch spells it without the prefix: `float32`, `bfloat16`."""
    shape: tuple[int, ...]
    fingerprint: str
    """Of the tensor's bytes in row-major order (fingerprint.py)."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def as_json(self) -> dict[str, Any]:
        """By hand: every replica gets an entry for every tensor, and dataclasses.asdict takes ten times as long."""
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "fingerprint": self.fingerprint}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Entry":
        return Entry(**data | {"shape": tuple(data["shape"])})


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors behind each other, each filled up with zeros to `padded(size)`."""

    entries: tuple[Entry, ...]
    payload: Tensor
    """uint8, one dimension."""


def pack(tensors: Iterable[tuple[str, Tensor]], limit: int, device: torch.device) -> Iterator[Bucket]:
    """Buckets on `device` of at most `limit` bytes; a larger tensor has one for itself. The iterable is consumed once, in order; a tensor may live
    anywhere, and only until the next one is asked for: it is copied before.

    A payload is complete when it is yielded, also for other streams.
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
    """A bucket in the making."""

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
        marks = fingerprints(payload, [room.nbytes for _, room in self._parts])  # waits for the device
        entries = (
            Entry(name, str(room.dtype).removeprefix("torch."), tuple(room.shape), mark)
            for (name, room), mark in zip(self._parts, marks, strict=True)
        )
        return Bucket(tuple(entries), payload)


def payload_size(sizes: Iterable[int]) -> int:
    """Bytes of the payload that holds tensors of `sizes` bytes."""
    return sum(map(padded, sizes))


def unpack(entries: Sequence[Entry], payload: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a payload, as views of it. Raises CorruptBucketError for the first that fails its checksum."""
    sizes = [entry.size for entry in entries]
    if payload.numel() != payload_size(sizes):
        raise CorruptBucketError(f"{payload.numel()} of {payload_size(sizes)} bytes")
    for entry, part, found in zip(entries, _parts(payload, sizes), fingerprints(payload, sizes), strict=True):
        if found != entry.fingerprint:
            raise CorruptBucketError(f"{entry.name}: checksum differs from the sender's")
        yield entry.name, part.view(torch_dtype(entry.dtype)).view(entry.shape)


def digest(entries: Iterable[Entry]) -> str:
    """sha256 over name, type, shape and checksum of every tensor, in order of names: it does not depend on how they were packed."""
    total = hashlib.sha256()
    for e in sorted(entries, key=lambda e: e.name):
        total.update(f"{e.name} {e.dtype} {list(e.shape)} {e.fingerprint}\n".encode())
    return total.hexdigest()


def torch_dtype(name: str) -> torch.dtype:
    """Raises CorruptBucketError for a name that torch does not know."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptBucketError(f"{name!r} is not a tensor type")
    return dtype


def _parts(payload: Tensor, sizes: Sequence[int]) -> Iterator[Tensor]:
    """Where the bytes of each tensor lie, without what fills them up."""
    rooms = payload.split([padded(size) for size in sizes])
    return (room[:size] for room, size in zip(rooms, sizes, strict=True))
