"""Tensors to buckets and back."""

import dataclasses
import json
import weakref
from collections.abc import Iterable, Iterator

import pytest
import torch

from rljob_trainer.wire.weights.bucket import Bucket, CorruptBucketError, Entry, digest, divided, pack, unpack
from rljob_trainer.wire.weights.fingerprint import ROW_BYTES
from rljob_trainer.wire.weights.slices import Slice

CPU = torch.device("cpu")
LIMIT = 2**20


def tensors() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        ("a", torch.randn(3, 5, generator=generator)),
        ("b", torch.randn(7, generator=generator).to(torch.bfloat16)),
        ("c", torch.randn(4, 6, generator=generator).T),
        ("d", torch.tensor(1.5)),
        ("e", torch.randn(2, 2, 2, generator=generator)),
    ]


def entries(limit: int, source: Iterable[tuple[str, torch.Tensor]]) -> list:
    return [e for bucket in pack(source, limit, CPU) for e in bucket.entries]


@pytest.mark.parametrize("limit", [1, 20_000, 40_000, 10_000_000])
def test_what_was_packed_is_unpacked_bit_for_bit(limit: int) -> None:
    buckets = list(pack(iter(tensors()), limit, CPU))
    assert all(b.payload.numel() <= limit or len(b.entries) == 1 for b in buckets)
    assert len(buckets) == {1: 5, 20_000: 5, 40_000: 3}.get(limit, 1)
    received = dict(t for b in buckets for t in unpack(b.entries, b.payload))
    assert list(received) == [name for name, _ in tensors()]
    for name, tensor in tensors():
        assert received[name].dtype == tensor.dtype and torch.equal(received[name], tensor)


def test_a_tensor_is_copied_before_the_next_one_is_asked_for() -> None:
    """Its memory may be another's by then, or given back, as that of offloaded parameters behind the last one."""

    def lent() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors():
            yield name, (borrowed := tensor.clone())
            borrowed.zero_()

    assert entries(LIMIT, lent()) == entries(LIMIT, tensors())


def test_one_flipped_bit_is_found() -> None:
    (bucket,) = pack(iter(tensors()), LIMIT, CPU)
    bucket.payload[ROW_BYTES + 5] ^= 1
    with pytest.raises(CorruptBucketError, match="^b: "):
        dict(unpack(bucket.entries, bucket.payload))


def test_a_payload_that_is_too_short_is_found() -> None:
    (bucket,) = pack(iter(tensors()), LIMIT, CPU)
    with pytest.raises(CorruptBucketError, match=f"{5 * ROW_BYTES - 1} of {5 * ROW_BYTES} bytes"):
        dict(unpack(bucket.entries, bucket.payload[:-1]))


def test_a_type_that_torch_does_not_know_is_refused() -> None:
    (bucket,) = pack(iter(tensors()[:1]), LIMIT, CPU)
    strange = Bucket((dataclasses.replace(bucket.entries[0], dtype="load"),), bucket.payload)
    with pytest.raises(CorruptBucketError, match="'load' is not a tensor type"):
        dict(unpack(strange.entries, strange.payload))


def test_the_digest_depends_on_the_tensors_and_not_on_packing_or_order() -> None:
    reference = digest(entries(LIMIT, tensors()))
    assert digest(entries(1, tensors()[::-1])) == reference
    changed = [(n, t + 1 if n == "d" else t) for n, t in tensors()]
    renamed = [("x" if n == "d" else n, t) for n, t in tensors()]
    reshaped = [(n, t.reshape(5, 3) if n == "a" else t) for n, t in tensors()]
    assert len({digest(entries(50, t)) for t in (tensors(), changed, renamed, reshaped)}) == 4


@pytest.mark.parametrize("limit", [1, 40_000, 10_000_000])
def test_a_bucket_is_divided_into_what_goes_to_different_workers(limit: int) -> None:
    found = list(divided(pack(iter(tensors()), limit, CPU), lambda entry: [(entry.name in "ad", None)]))
    assert [[e.name for e in b.entries] for key, b in found if key] == (
        [["a"], ["d"]] if limit < 10_000_000 else [["a", "d"]]
    )
    received = {name: (key, t.clone()) for key, b in found for name, t in unpack(b.entries, b.payload)}
    for name, tensor in tensors():
        assert received[name][0] is (name in "ad") and torch.equal(received[name][1], tensor)


def test_a_bucket_that_was_divided_is_gone_before_the_next_one_is_packed() -> None:
    packed: list[weakref.ref[torch.Tensor]] = []

    def buckets() -> Iterator[Bucket]:
        for _ in range(3):
            assert not any(payload() is not None for payload in packed)
            yield _noted(next(pack(iter(tensors()), 10_000_000, CPU)), packed)

    assert len(list(divided(buckets(), lambda entry: [(entry.name, None)]))) == 3 * len(tensors())


def _noted(bucket: Bucket, packed: list[weakref.ref[torch.Tensor]]) -> Bucket:
    packed.append(weakref.ref(bucket.payload))
    return bucket


HALVES = {
    "a": (Slice(0, ((0, 1), (2, 3))), Slice(1, ((1, 5),))),
    "b": (Slice(0, ((0, 4),)), Slice(0, ((4, 7),))),
    "c": (Slice(1, ((0, 2),)), Slice(1, ((2, 4),))),
    "d": (None, None),
    "e": (Slice(2, ((1, 2),)), None),
}


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_worker_gets_its_slices_one_after_another_and_can_verify_them(first: int) -> None:
    (bucket,) = pack(iter(tensors()), LIMIT, CPU)
    found = list(divided([bucket], lambda entry: enumerate(HALVES[entry.name]), first))
    assert [receiver for receiver, _ in found] == ([0, 1] if first % 2 == 0 else [1, 0])
    for receiver, part in found:
        received = dict(unpack([sent(entry) for entry in part.entries], part.payload))
        for name, tensor in tensors():
            piece = HALVES[name][receiver]
            own = [tensor.narrow(piece.dim, a, b - a) for a, b in piece.ranges] if piece else [tensor]
            assert torch.equal(received[name], torch.cat(own, piece.dim) if piece else tensor)
        part.payload[ROW_BYTES + 1] ^= 1
        with pytest.raises(CorruptBucketError, match="^b: "):
            dict(unpack(part.entries, part.payload))
    assert len({digest(part.entries) for _, part in found} | {digest(bucket.entries)}) == 3


def sent(entry: Entry) -> Entry:
    return Entry.from_json(json.loads(json.dumps(entry.as_json())))
