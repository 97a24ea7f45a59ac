"""Packs tensors into buckets of bytes, verifies them, and computes the digest of a whole policy."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights.fingerprint import fingerprints, padded
from rljob_trainer.wire.weights.slices import Slice


class CorruptBucketError(ValueError):
    """A bucket's bytes do not match the sender's description."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a bucket, or a slice of one, by its Hugging Face name."""

    name: str
    dtype: str
    """As torch spells it without the prefix: `float32`, `bfloat16`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    fingerprint: str
    """Fingerprint of the bytes that are sent, in row-major order (fingerprint.py)."""
    slice: Slice | None = None
    """Of the tensor, that is sent; None: all of it."""

    @property
    def sent_shape(self) -> tuple[int, ...]:
        return self.slice.of(self.shape) if self.slice else self.shape

    @property
    def size(self) -> int:
        """Bytes that are sent."""
        return math.prod(self.sent_shape) * torch_dtype(self.dtype).itemsize

    def as_json(self) -> dict[str, Any]:
        """Written by hand: dataclasses.asdict takes ten times as long, and every replica gets an entry for every tensor."""
        own = {"name": self.name, "dtype": self.dtype, "shape": self.shape, "fingerprint": self.fingerprint}
        return own | {"slice": self.slice} if self.slice else own

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Entry":
        part = data.get("slice")
        return Entry(**data | {"shape": tuple(data["shape"]), "slice": part and Slice.from_json(part)})


@dataclass(frozen=True)
class Bucket:
    """Concatenated tensors, each padded with zeros to `padded(size)`."""

    entries: tuple[Entry, ...]
    payload: Tensor
    """uint8, one dimension."""

    @cached_property
    def digest(self) -> str:
        return digest(self.entries)

    @property
    def size(self) -> int:
        """Bytes of the tensors, without padding."""
        return sum(entry.size for entry in self.entries)


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
        self._payload = torch.empty(capacity, dtype=torch.uint8, device=device)  # the last bucket may be nearly empty
        self._parts: list[tuple[str, Tensor]] = []

    def has_room(self, size: int) -> bool:
        return self._used + padded(size) <= self._payload.numel()

    def add(self, name: str, tensor: Tensor) -> None:
        end = self._used + tensor.nbytes
        room = self._payload[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._parts.append((name, room.copy_(tensor)))
        self._used += padded(tensor.nbytes)
        self._payload[end : self._used].zero_()

    def bucket(self) -> Bucket:
        payload = self._payload[: self._used]
        marks = fingerprints(payload, [room.nbytes for _, room in self._parts])  # synchronizes with the device
        entries = (
            Entry(name, str(room.dtype).removeprefix("torch."), tuple(room.shape), mark)
            for (name, room), mark in zip(self._parts, marks, strict=True)
        )
        return Bucket(tuple(entries), payload)


def divided[K](
    buckets: Iterable[Bucket], parts: Callable[[Entry], Iterable[tuple[K, Slice | None]]], first: int = 0
) -> Iterator[tuple[K, Bucket]]:
    """Yields what each bucket of whole tensors has for each receiver, or the bucket itself if one gets all of it. With what is under way, that is no
    more than two buckets.

    Args:
        parts: receivers of a tensor, and which slice of it each gets; None: all
        first: which receiver begins, counted round and round
    """
    for bucket in buckets:
        entries_of: dict[K, list[tuple[int, Slice | None]]] = {}
        for i, entry in enumerate(bucket.entries):
            for receiver, part in parts(entry):
                entries_of.setdefault(receiver, []).append((i, part))
        order = list(entries_of)
        turn = first % len(order) if order else 0
        yield from ((receiver, _only(bucket, entries_of[receiver])) for receiver in order[turn:] + order[:turn])
        del bucket


def _only(bucket: Bucket, places: Sequence[tuple[int, Slice | None]]) -> Bucket:
    """The tensors at these places, or slices of them. The payload is complete on all CUDA streams."""
    is_cut = any(part for _, part in places)
    if len(places) == len(bucket.entries) and not is_cut:
        return bucket
    wholes = list(_tensors(bucket.entries, bucket.payload))
    entries = [replace(bucket.entries[i], slice=part) for i, part in places]
    sizes = [entry.size for entry in entries]
    payload = torch.zeros(payload_size(sizes), dtype=torch.uint8, device=bucket.payload.device)
    for (i, part), room in zip(places, _tensors(entries, payload), strict=True):
        _copy(room, wholes[i], part)
    marks = fingerprints(payload, sizes) if is_cut else [entry.fingerprint for entry in entries]
    if payload.is_cuda:
        torch.cuda.current_stream().synchronize()
    marked = (replace(entry, fingerprint=mark) for entry, mark in zip(entries, marks, strict=True))
    return Bucket(tuple(marked), payload)


def _copy(room: Tensor, whole: Tensor, part: Slice | None) -> None:
    if part is None:
        room.copy_(whole)
        return
    at = 0
    for first, end in part.ranges:
        room.narrow(part.dim, at, end - first).copy_(whole.narrow(part.dim, first, end - first))
        at += end - first


def payload_size(sizes: Iterable[int]) -> int:
    """Bytes of a payload with tensors of `sizes` bytes."""
    return sum(map(padded, sizes))


def unpack(entries: Sequence[Entry], payload: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a payload, or slices, as views of it. Raises CorruptBucketError for the first whose fingerprint differs."""
    sizes = [entry.size for entry in entries]
    if payload.numel() != payload_size(sizes):
        raise CorruptBucketError(f"{payload.numel()} of {payload_size(sizes)} bytes")
    for entry, tensor, fingerprint in zip(
        entries, _tensors(entries, payload), fingerprints(payload, sizes), strict=True
    ):
        if fingerprint != entry.fingerprint:
            raise CorruptBucketError(f"{entry.name}: checksum differs from the sender's")
        yield entry.name, tensor


def digest(entries: Iterable[Entry]) -> str:
    """The sum of the sha256 of name, type, shape, slice and fingerprint of all tensors, modulo 2^256: independent of packing and order, and the
    digest of a whole is the `total` of the digests of its parts, so no process needs to see a whole policy. Not a defence against an adversary."""
    lines = (f"{e.name} {e.dtype} {list(e.shape)} {e.slice or 'all'} {e.fingerprint}\n" for e in entries)
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


def _tensors(entries: Sequence[Entry], payload: Tensor) -> Iterator[Tensor]:
    """What was sent of each tensor, as views of the payload."""
    rooms = payload.split([padded(entry.size) for entry in entries])
    for entry, room in zip(entries, rooms, strict=True):
        yield room[: entry.size].view(torch_dtype(entry.dtype)).view(entry.sent_shape)
