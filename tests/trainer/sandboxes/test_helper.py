"""A claim of a helper: one in its life, which ends with it, however it ends."""

import asyncio
import signal
import struct
from pathlib import Path

import pytest

from rljob_trainer.sandboxes import pod
from rljob_trainer.sandboxes.frames import EMPTY, fields_of, frame, token_of
from rljob_trainer.sandboxes.pod import PodSandbox
from rljob_trainer.sandboxes.sandbox import SandboxError
from trainer.sandboxes.helpers import SECRET, TOKEN, UID, listens, running

PROMPT = 20.0


async def test_the_token_of_one_sandbox_is_not_that_of_another_and_says_nothing_of_the_jobs() -> None:
    assert token_of(SECRET, UID) == TOKEN and len(TOKEN) == 64
    assert len({TOKEN, token_of(SECRET, "uid-2"), token_of("another job's", UID)}) == 3


async def test_it_is_free_until_somebody_with_its_token_claims_it_and_ends_with_the_claim(tmp_path: Path) -> None:
    async with running(tmp_path) as (helper, port):
        with pytest.raises(SandboxError, match="cannot be claimed"):
            await PodSandbox.claimed(f"127.0.0.1:{port}", token_of(SECRET, "uid-2"))
        assert listens(port) and helper.returncode is None
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        assert not listens(port), "a probe says that it is taken"
        with pytest.raises(SandboxError, match="cannot be claimed"):
            await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        assert (await sandbox.run(["echo", "mine"], 10, b"", 100)).output == b"mine\n"
        await sandbox.close()
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0


async def test_a_program_cannot_take_the_port_of_a_claimed_sandbox(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, port):
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        program = f"import socket; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('', {port})); s.listen()"
        ended = await sandbox.run(["python3", "-c", program], 30, b"", 10000)
        assert ended.code == 1 and b"Address already in use" in ended.errors
        await sandbox.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\0",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 64) + b"x" * 64,
        struct.pack(">I", 65),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_strangers_are_sent_away_and_the_next_one_is_served(sent: bytes, tmp_path: Path) -> None:
    async with running(tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        assert await asyncio.wait_for(_rest(reader), PROMPT) == b""
        writer.close()
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        await sandbox.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "sent",
    [
        frame([b"run", b"1000"]),
        frame([b"run", b"1000", b"99999999", b"", b"true"]),
        frame([b"run", b"1000", b"10", b""]),
        frame([b"read", b"a", b"99999999"]),
        frame([b"erase", b"a", b"b"]),
        frame([]) + frame([b"x"]),
        struct.pack(">I", 2**31),
        struct.pack(">II", 8, 2**31) + b"abcd",
        struct.pack(">I", 3) + b"abc",
        frame([b"a"] * 2000),
    ],
)
async def test_what_it_cannot_read_ends_it(sent: bytes, tmp_path: Path) -> None:
    async with running(tmp_path) as (helper, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">I", 64) + TOKEN.encode())
        assert await fields_of(reader) == [b"ok"]
        writer.write(sent)
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0
        writer.close()


async def test_a_claim_whose_holder_is_killed_during_a_program_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (helper, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">I", 64) + TOKEN.encode())
        await fields_of(reader)
        writer.write(frame([b"run", b"600000", b"10", b"", b"sleep", b"600"]))
        writer.write(EMPTY)
        await writer.drain()
        writer.transport.abort()
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0


async def test_it_ends_at_once_when_its_pod_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as (helper, _):
        helper.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0


async def test_a_helper_that_is_gone_or_hangs_fails_the_request_and_all_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "GRACE_SECONDS", 0.5)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        async with running(tmp_path) as (helper, port):
            sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
            helper.send_signal(number)
            for _ in range(2):
                with pytest.raises(SandboxError, match="has ended"):
                    await asyncio.wait_for(sandbox.run(["true"], 0.5, b"", 10), PROMPT)
            await sandbox.close()


async def test_of_a_request_that_was_given_up_the_answer_is_nobodys(tmp_path: Path) -> None:
    async with running(tmp_path) as (helper, port):
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run(["sleep", "600"], 600, b"", 10), 0.2)
        with pytest.raises(SandboxError, match="has ended"):
            await sandbox.run(["echo", "another's"], 10, b"", 100)
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0
        await sandbox.close()
