"""Connections that clients keep open, thousands of them: what each costs the gateway, and for how long."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from tinker.proto import tinker_public_pb2 as sdk

from rljob_trainer.gateway import main
from rljob_trainer.gateway.wire.routes import API
from rljob_trainer.machine import free_port
from trainer.gateway.process import BASE, GatewayProcess, Surroundings
from trainer.gateway.test_wire import dense

pytestmark = pytest.mark.slow

COUNT = 100
MOST = 64 * 2**10
"""Bytes of the gateway's memory for each connection."""
TOKENS, WIDTH, DATA = 64, 128, 12
"""Of a pass, targets of each token, and data."""
Call = Callable[[aiohttp.ClientSession], Awaitable[None]]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    started = GatewayProcess(tmp_path)
    await asyncio.to_thread(started.start)
    with Surroundings(started, tmp_path).running() as others:
        others.call(others.may_work.set)
        yield started
    started.kill()


async def post(session: aiohttp.ClientSession, call: str, body: bytes) -> bytes:
    async with session.post(API + call, data=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.read()


async def cost(gateway: GatewayProcess, call: Call) -> float:
    """Bytes for each connection over which a call was made, and which is open then."""
    async with AsyncExitStack() as open_connections:
        for i in range(2 * COUNT):
            if i == COUNT:
                before = gateway.memory
            await call(await open_connections.enter_async_context(aiohttp.ClientSession(gateway.url)))
        return (gateway.memory - before) / COUNT


async def begun(session: aiohttp.ClientSession) -> str:
    """A session."""
    return str(json.loads(await post(session, "create_session", b"{}"))["session_id"])


async def test_a_connection_that_is_open_does_not_keep_what_was_asked_over_it_last(gateway: GatewayProcess) -> None:
    async with aiohttp.ClientSession(gateway.url) as first:
        asked = {"session_id": await begun(first), "numbers": [1000 + i for i in range(9000)]}
    body = json.dumps(asked).encode()

    async def call(session: aiohttp.ClientSession) -> None:
        await post(session, "session_heartbeat", body)

    assert await cost(gateway, call) < MOST


def wide_pass(model: str) -> bytes:
    """With an answer of 4 bytes for each of its targets."""
    chunk = sdk.Chunk(encoded_text=sdk.EncodedTextChunk(tokens=np.full(TOKENS, 7, "<i4").tobytes()))
    targets, weights = dense(np.ones((TOKENS, WIDTH)), sdk.DTYPE_INT64), dense(np.ones((TOKENS, WIDTH)))
    datum = sdk.Datum(model_input=[chunk], loss_fn_inputs={"target_tokens": targets, "weights": weights})
    asked = sdk.ForwardBackwardRequest(model_id=model, seq_id=1, data=[datum] * DATA, loss_fn="cross_entropy")
    return bytes(asked.SerializeToString())


async def test_a_connection_that_is_open_does_not_keep_what_was_answered_over_it_last(gateway: GatewayProcess) -> None:
    async with aiohttp.ClientSession(gateway.url) as first:
        session = await begun(first)
        created = {"session_id": session, "model_seq_id": 0, "base_model": BASE, "lora_config": {"rank": 4}}
        await post(first, "create_model", json.dumps(created).encode())
        await post(first, "forward_backward", wide_pass(f"{session}:train:0"))
    result = json.dumps({"request_id": f"{session}:train:0:1"}).encode()

    async def call(session: aiohttp.ClientSession) -> None:
        assert len(await post(session, "retrieve_future", result)) > 4 * TOKENS * WIDTH * DATA

    assert await cost(gateway, call) < MOST


async def test_a_connection_over_which_nothing_is_asked_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "IDLE_SECONDS", 0.5)
    port = free_port()
    runner = await main._serve(web.Application(), "127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"404" in await reader.readuntil(b"404: Not Found")
        await asyncio.sleep(0.2)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await runner.cleanup()
