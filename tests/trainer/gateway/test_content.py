"""Bodies that clients have compressed: what is read of them, and how much."""

import asyncio
import gzip
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import zstandard
from tinker.proto import tinker_public_pb2 as sdk

from rljob_trainer.gateway import clients
from rljob_trainer.gateway.wire import content, routes
from rljob_trainer.gateway.wire.content import Received
from trainer.gateway.test_routes import Desk, opened, snapshot

Compress = Callable[[bytes], bytes]
COMPRESSED: dict[str, Compress] = {"zstd": zstandard.ZstdCompressor().compress, "gzip": gzip.compress}
MIB = 2**20

by_encoding = pytest.mark.parametrize(("encoding", "compress"), COMPRESSED.items())


def body_of(desk: Desk, seq: int, tokens: int = 3, text: bytes = b"") -> bytes:
    """A pass of so many tokens, or of a text, and without targets, which its future fails for."""
    chunk = sdk.Chunk(encoded_text=sdk.EncodedTextChunk(tokens=text or bytes(4 * tokens)))
    request = sdk.ForwardBackwardRequest(model_id=desk.model, seq_id=seq, data=[sdk.Datum(model_input=[chunk])])
    return bytes(request.SerializeToString())


@by_encoding
async def test_a_compressed_body_is_the_same_request_as_a_plain_one(
    tmp_path: Path, encoding: str, compress: Compress
) -> None:
    async with opened(tmp_path) as desk:
        for sent, kind in ((body_of(desk, 1), "identity"), (compress(body_of(desk, 1)), encoding)):
            accepted = await desk.bytes("forward_backward", sent, kind)
            assert (accepted.status, (await accepted.json())["request_id"]) == (200, f"{desk.model}:1")
        assert not desk.service.books[desk.model].line.failed, "the same request twice, not another one"
        heard = await desk.bytes(
            "session_heartbeat", compress(json.dumps({"session_id": desk.session}).encode()), encoding
        )
        assert heard.status == 200


@by_encoding
async def test_a_compressed_body_that_is_too_large_fails_its_future_and_the_model_goes_on(
    tmp_path: Path, encoding: str, compress: Compress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LARGEST_BODY", 10_000)
    async with opened(tmp_path) as desk:
        sent = compress(body_of(desk, 1, tokens=MIB))
        assert (await desk.bytes("forward_backward", sent, encoding)).status == 200
        assert desk.service.books[desk.model].line.entries[1].kind == "WorkFailure"


@by_encoding
async def test_a_body_that_is_too_large_as_it_came_fails_its_future_and_the_model_goes_on(
    tmp_path: Path, encoding: str, compress: Compress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LARGEST_BODY", MIB)
    async with opened(tmp_path) as desk:
        sent = compress(body_of(desk, 1, text=random.Random(0).randbytes(2 * MIB)))
        assert (await desk.bytes("forward_backward", sent, encoding)).status == 200
        assert desk.service.books[desk.model].line.entries[1].kind == "WorkFailure"


@by_encoding
async def test_no_more_is_decompressed_than_is_asked_for(encoding: str, compress: Compress) -> None:
    packed = compress(bytes(64 * MIB))
    for most in (1, 100, MIB):
        assert await Received(packed, len(packed), encoding).plain(most) == bytes(most)


@by_encoding
async def test_a_body_of_json_is_bounded_by_what_it_is_decompressed(
    tmp_path: Path, encoding: str, compress: Compress
) -> None:
    async with opened(tmp_path) as desk:
        large = json.dumps({"session_id": desk.session, "more": "x" * 64 * MIB}).encode()
        found = await desk.bytes("session_heartbeat", compress(large), encoding)
        assert found.status == 400 and "more than 65536 bytes" in (await found.json())["detail"]


@by_encoding
@pytest.mark.parametrize("path", ["forward_backward", "optim_step"])
async def test_a_body_that_is_not_of_its_encoding_or_ends_too_early_is_refused(
    tmp_path: Path, encoding: str, compress: Compress, path: str
) -> None:
    async with opened(tmp_path) as desk:
        for sent in (b"{}" * 20, compress(body_of(desk, 1))[:-5]):
            found = await desk.bytes(path, sent, encoding)
            assert found.status == 400 and f"not compressed by {encoding}" in (await found.json())["detail"]


async def test_another_encoding_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        for path in ("forward_backward", "optim_step", "asample"):
            found = await desk.bytes(path, b"x", "br")
            assert found.status == 415 and "gzip, zstd" in await found.text()


async def test_what_a_body_is_decompressed_to_counts_as_its_clients_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_trainer.gateway.clients.MOST_OF_CLIENT", MIB)
    async with opened(tmp_path) as desk:
        fits, does_not = (COMPRESSED["zstd"](body_of(desk, 1, tokens)) for tokens in (MIB // 5, MIB // 4))
        assert len(does_not) < 1000
        assert (await desk.bytes("forward_backward", does_not, "zstd")).status == 402
        assert (await desk.bytes("forward_backward", fits, "zstd")).status == 200


@pytest.mark.parametrize("path", ["forward_backward", "asample", "optim_step"])
async def test_a_body_of_a_client_that_has_vanished_gives_back_its_room(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "READ_SECONDS", 0.3)
    monkeypatch.setattr(clients, "MOST_OF_CLIENT", 12_000)

    async def vanishing() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    async with opened(tmp_path) as desk:
        lost = await desk.streamed(path, vanishing(), 9_000)
        assert lost.status == 408 and "has not come within" in await lost.text()
        assert (await desk.bytes("forward_backward", body_of(desk, 1, tokens=1000))).status == 200


async def test_a_body_that_is_nested_too_deeply_is_a_mistake_of_the_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        found = await desk.bytes("optim_step", b"[" * 60_000)
        assert found.status == 400 and "nested too deeply" in (await found.json())["detail"]


async def test_a_body_that_is_too_large_fails_its_future_and_the_next_request_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LARGEST_BODY", 10_000)
    async with opened(tmp_path) as desk:
        chunk = sdk.Chunk(encoded_text=sdk.EncodedTextChunk(tokens=bytes(400_000)))
        body = sdk.ForwardBackwardRequest(model_id=desk.model, seq_id=26, data=[sdk.Datum(model_input=[chunk])])
        for seq in (1, 26):
            body.seq_id = seq
            accepted = await desk.bytes("forward_backward", body.SerializeToString())
            assert (accepted.status, await accepted.json()) == (
                200,
                {"request_id": f"{desk.model}:{seq}", "model_id": desk.model},
            )
        await desk.save(2, snapshot(desk.model, 2), f"{desk.session}:sample:0")
        found = await (await desk.post("retrieve_future", request_id=f"{desk.model}:1")).text()
        assert "and 10000 is the most" in found and "cut its sequence" in found
        refused = await desk.bytes("forward_backward", b"\x0a" + bytes(400_000))
        assert refused.status == 400 and "does not begin with model_id" in await refused.text()
