"""What a worker pod says of processes that do not get as far as the agent."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from rljob_api import names
from rljob_trainer.agents.program import MODULE
from rljob_trainer.machine import free_port, loopback
from rljob_trainer.pod import worker_life
from rljob_trainer.pod.channel import FileChannel
from rljob_trainer.pod.worker import WorkerPod
from rljob_trainer.pod.worker_life import WorkerLife, WorkerOrders
from rljob_trainer.wire.channel import encode
from rljob_trainer.workers import process
from rljob_trainer.workers.remote import frame
from trainer.pod.pods import until

ENVIRONMENT = {names.ENV_POD_NAME: "demo-worker-0", names.ENV_POD_UID: "uid", names.ENV_ROLLOUT_TOKEN: "token"}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_life, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(worker_life, "FIRST_BACKOFF_SECONDS", 0.02)


@asynccontextmanager
async def driver(hears: bool, stays: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """One that lets everybody in, and closes each connection: at once, or when it has heard what the process has loaded, or not at all. Its port and
    what it heard."""
    heard = list[bytes]()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(encode({}))
        line = b""
        while hears and not line:
            line = await frame(reader)
        heard.append(line)
        if not stays:
            writer.close()

    server = await asyncio.start_server(accept, loopback(), 0)
    yield server.sockets[0].getsockname()[1], heard
    server.close()


@asynccontextmanager
async def life(tmp_path: Path, port: int, first: str = "", **variables: str) -> AsyncIterator[WorkerLife]:
    """`first`: what the agent's file does when it is loaded."""
    (tmp_path / "agent.py").write_text(f"{first}async def rollout(prompt, policy, row): ...")
    command = ("python", str(tmp_path / "agent.py"), json.dumps(["rollout"]))
    found = WorkerLife(
        WorkerOrders(1, loopback(), port, names.ROLE_WORKER, MODULE, command, variables, 1), ENVIRONMENT, lambda: None
    )
    running = asyncio.create_task(found.run())
    yield found
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("value", ["x" * 200_000, "a\0b"])
async def test_a_process_that_the_kernel_does_not_start_is_a_failure_that_the_pod_reports(
    tmp_path: Path, value: str
) -> None:
    async with driver(hears=True) as (port, _), life(tmp_path, port, VALUE=value) as found:
        await until(lambda: found.failure is not None)
        assert found.failure and found.failure.message.startswith("the process cannot be started: ")


@pytest.mark.parametrize(
    ("ending", "exception", "message"),
    [
        ("os._exit(3)", "exit code 3", "no licence is left"),
        ("os.kill(os.getpid(), 11)", "Signal 11 (SIGSEGV)", "the process was killed"),
    ],
)
async def test_what_a_process_said_before_it_ended_is_reported(
    tmp_path: Path, ending: str, exception: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = f"import os, sys\nprint('no licence is left', file=sys.stderr)\n{ending}\n"
    async with driver(hears=True) as (port, _), life(tmp_path, port, first) as found:
        await until(lambda: found.failure is not None)
        assert found.failure and (found.failure.exception, found.failure.message) == (exception, message)
        assert "no licence is left" in found.failure.lines
    assert "no licence is left" in capfd.readouterr().err, "as before, in the pod's log"


async def test_a_driver_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_life, "UNREACHED", 3)
    port = free_port()
    async with life(tmp_path, port) as found:
        await until(lambda: found.failure is not None)
        assert found.failure and found.failure.message.startswith(f"cannot reach the driver at {loopback()}:{port}: ")


async def test_a_driver_that_hangs_up_before_the_agent_is_loaded_is_reported_and_not_asked_without_a_pause(
    tmp_path: Path,
) -> None:
    async with driver(hears=False) as (port, heard), life(tmp_path, port) as found:
        await until(lambda: found.failure is not None)
        assert found.failure and found.failure.message == worker_life.HUNG_UP
        assert len(heard) == worker_life.HANGUPS
        assert found._backoff >= 0.02 * 2 ** (worker_life.HANGUPS - 1)


async def test_the_pause_between_two_processes_begins_anew_once_one_has_loaded_the_agent(tmp_path: Path) -> None:
    async with driver(hears=True) as (port, heard), life(tmp_path, port) as found:
        await until(lambda: len(heard) >= 3)
        assert found._backoff <= 0.04 and found.failure is None


KEEPS = """import subprocess
for _ in range(6):
    subprocess.Popen(["sleep", "600"], start_new_session=True)

"""
LEAVES = """import os
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.wait()

"""


@pytest.fixture
def _few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_PROCESSES": 5, "MOST_ORPHANS": 5, "LOOK_SECONDS": 0.05}.items():
        monkeypatch.setattr(process, name, value)
    monkeypatch.setattr(worker_life, "LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("_few_processes")
async def test_an_agent_that_keeps_too_many_processes_is_a_failure_that_the_pod_reports(tmp_path: Path) -> None:
    async with driver(hears=True, stays=True) as (port, _), life(tmp_path, port, KEEPS) as found:
        await until(lambda: found.failure is not None)
        assert found.failure and "has started 6 others that still run; at most 5 may" in found.failure.message


def _sleepers(mark: str) -> list[psutil.Process]:
    """Daemons of the agent: its processes are known by a variable of their environment."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.name() == "sleep" and one.environ().get("MARK") == mark and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


@pytest.mark.usefixtures("_few_processes")
async def test_daemons_that_an_agent_leaves_behind_in_its_pod_are_ended_when_they_are_too_many(tmp_path: Path) -> None:
    mark, most = str(tmp_path), 0
    async with driver(hears=True, stays=True) as (port, heard), life(tmp_path, port, LEAVES, MARK=mark) as found:
        async with asyncio.timeout(60):
            while not (heard and most and not _sleepers(mark)):
                most = max(most, len(_sleepers(mark)))
                await asyncio.sleep(0.01)
        assert found.failure is None, "the agent goes on"


def _listens(port: int) -> bool:
    return any(c.laddr[1] == port and c.status == psutil.CONN_LISTEN for c in psutil.Process().net_connections("tcp"))


@pytest.mark.parametrize(
    ("role", "section"), [(names.ROLE_WORKER, "rollout.agent"), (names.scorer_role(2), "rewards[2]")]
)
async def test_a_pod_of_another_release_says_so_and_is_ready_for_nothing(
    tmp_path: Path, role: str, section: str
) -> None:
    (tmp_path / names.CONTROL_KEY).write_text(json.dumps({"protocol": names.PROTOCOL + 1, "attempt": 3}))
    port, file = free_port(), tmp_path / f"{names.report('demo-worker-0')}.json"
    running = asyncio.create_task(WorkerPod(FileChannel(tmp_path), ENVIRONMENT, role, port).run())
    await until(lambda: file.exists() and '"configuration"' in file.read_text())
    report = json.loads(file.read_text())
    assert report["failure"]["field"] == f"spec.{section}.workers.template.image" and report["state"] == "idle"
    await until(lambda: _listens(port))
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/health") as answer:
        assert answer.status == 503
    running.cancel()
    await asyncio.wait([running])
