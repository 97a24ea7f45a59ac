"""A claim of a helper: one in its life, which ends with it, however it ends."""

import asyncio
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rljob_trainer.sandboxes import pod
from rljob_trainer.sandboxes.helper import EMPTY, fields_of, frame, token_of
from rljob_trainer.sandboxes.pod import PodSandbox
from rljob_trainer.sandboxes.sandbox import SandboxError
from trainer.sandboxes.helpers import PID_1, SECRET, TOKEN, UID, claimed, listens, needs_pid_namespaces, running

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
        with suppress(OSError):  # it may have been sent away already
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


@needs_pid_namespaces
async def test_it_ends_at_once_when_its_pod_is_deleted_and_for_no_signal_of_a_program(tmp_path: Path) -> None:
    """Also of one that is sent again and again, and by all means that there are."""
    program = "import signal, os\nfor n in set(signal.Signals): os.kill(1, n)\nprint('alive')"
    forged = "import ctypes\nlibc = ctypes.CDLL(None)\ninfo = (ctypes.c_int * 32)(15, 0, CODE)\n"
    forged += "print(libc.syscall(129, 1, 15, info))"  # rt_sigqueueinfo
    async with running(tmp_path, under=PID_1) as (process, port):
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        assert (await sandbox.run(["python3", "-c", program], 30, b"", 100)).output == b"alive\n"
        for code in (0, 0x80, -1, -6):  # SI_USER, SI_KERNEL, SI_QUEUE, SI_TKILL
            await sandbox.run(["python3", "-c", forged.replace("CODE", str(code))], 30, b"", 100)
            assert (await sandbox.run(["echo", "alive"], 30, b"", 100)).output == b"alive\n"
        (helper,) = psutil.Process(process.pid).children()
        helper.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PROMPT) == 0
        await sandbox.close()


TRACED = """
import ctypes, os, time
libc = ctypes.CDLL(None)
ready, seized, pid = os.pipe(), os.pipe(), os.getpid()
if os.fork() == 0:
    os.setsid()
    os.read(ready[0], 1)
    assert libc.ptrace(0x4206, pid, ctypes.c_long(0), ctypes.c_long(0)) == 0  # PTRACE_SEIZE
    os.write(seized[1], b"x")
    time.sleep(600)
libc.prctl(0x59616D61, ctypes.c_long(-1), 0, 0, 0)  # PR_SET_PTRACER
os.write(ready[1], b"x")
os.read(seized[0], 1)
print("traced", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("under", [(), pytest.param(PID_1, marks=needs_pid_namespaces)])
async def test_a_program_that_keeps_it_waiting_for_good_ends_it(under: Sequence[str], tmp_path: Path) -> None:
    """Whoever traces a process keeps others from reaping it."""
    async with running(tmp_path, silence=2, under=under) as (helper, port):
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{port}", TOKEN)
        with pytest.raises(SandboxError, match="has ended"):
            await sandbox.run(["python3", "-c", TRACED], 1.5, b"", 100)
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0
        await sandbox.close()


@pytest.mark.parametrize("name", ["CHLD", "ALRM", "WINCH"])
@needs_pid_namespaces
async def test_silence_of_a_claim_is_noticed_whatever_a_program_sends_meanwhile(name: str, tmp_path: Path) -> None:
    async with running(tmp_path, silence=2, under=PID_1) as (helper, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">I", 64) + TOKEN.encode())
        await fields_of(reader)
        loop = f"setsid sh -c 'while kill -{name} 1; do sleep 0.1; done' >&- 2>&- <&- &"
        writer.write(frame([b"run", b"5000", b"10", b"", b"sh", b"-c", loop.encode()]))
        assert (await fields_of(reader))[:2] == [b"ok", b"0"]
        assert await asyncio.wait_for(helper.wait(), PROMPT) == 0
        writer.close()


async def test_a_claim_that_says_it_is_there_is_kept_during_a_program_and_between_two(tmp_path: Path) -> None:
    async with running(tmp_path, silence=2) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">I", 64) + TOKEN.encode())
        await fields_of(reader)
        for request in ([b"run", b"60000", b"10", b"", b"sleep", b"4"], [b"run", b"60000", b"10", b"", b"true"]):
            writer.write(frame(request))
            answer = asyncio.create_task(fields_of(reader))
            for _ in range(8):
                await asyncio.sleep(0.5)
                writer.write(EMPTY)
            assert (await asyncio.wait_for(answer, PROMPT))[:2] == [b"ok", b"0"]
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        frame([b"ok"]),
        frame([b"ok", b"0", b"no such reason", b"", b""]),
        frame([b"ok", b"none", b"", b"", b""]),
        frame([b"ok", b"0", b"", b"", b"", b"more"]),
        frame([b"error"]),
        frame([]),
        frame([b""] * 9),
        struct.pack(">I", 2**22 + 1),
        struct.pack(">II", 8, 2**31) + b"abcd",
        struct.pack(">I", 3) + b"abc",
    ],
)
async def test_an_answer_that_is_none_is_a_lost_sandbox(said: bytes) -> None:
    """Whatever speaks in the helper's place."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4 + len(TOKEN))
        writer.write(frame([b"ok"]) + said)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        sandbox = await PodSandbox.claimed(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN)
        for _ in range(2):
            with pytest.raises(SandboxError, match="has ended"):
                await asyncio.wait_for(sandbox.run(["true"], 5, b"", 10), PROMPT)
        await sandbox.close()


async def test_a_stranger_that_says_nothing_is_sent_away(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(_rest(reader), PROMPT) == b""
        writer.close()


async def test_a_program_that_is_traced_and_stops_has_not_ended(tmp_path: Path) -> None:
    program = "import ctypes, os, time\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), 19)\ntime.sleep(600)"
    async with claimed(tmp_path) as sandbox:
        ended = await sandbox.run(["python3", "-c", program], 1, b"", 1000)
        assert (ended.code, ended.reason) == (-9, "timeout")


async def test_nothing_of_the_helper_s_own_is_read_through_a_link(tmp_path: Path) -> None:
    async with claimed(tmp_path) as sandbox:
        await sandbox.run(["ln", "-s", "/proc/self/cmdline", "out"], 30, b"", 100)
        with pytest.raises(SandboxError, match="out"):
            await sandbox.read("out")
        with pytest.raises(SandboxError, match="/proc/self/comm"):
            await sandbox.write("/proc/self/comm", b"other")


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
