"""The launcher's children: none is out of reach while it is being forked, and each is waited for by one part only."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from api.specs import make_spec
from rljob_api import names
from rljob_trainer.pod import fork_client
from rljob_trainer.pod.attempt import _kill, grace_of
from rljob_trainer.pod.channel import FileChannel
from rljob_trainer.pod.fork_client import ForkServer, ForkServerLost, ForkServers
from rljob_trainer.pod.fork_server import ForkRequest
from rljob_trainer.pod.launcher import Launcher
from rljob_trainer.pod.settings import Settings

SECONDS = 60
LATE = """
import json, os, sys, time
print(json.dumps({"ready": 1}), flush=True)
sys.stdin.readline()
child = os.fork()
if child == 0:
    time.sleep(1)  # a busy machine: the leader is known, and leads no group yet
    os.setsid()
    time.sleep(600)
    os._exit(0)
print(json.dumps({"leader": child}), flush=True)
_, status = os.waitpid(child, 0)
print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
"""


async def test_a_fetch_that_is_stopped_while_it_is_forked_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "are_fetched", lambda sources: False)
    server, stop = ForkServer("runner", "module", os.environ), asyncio.Event()
    server._command = (sys.executable, "-c", LATE)
    spec = cast(Any, SimpleNamespace(sources={}))
    obtaining = asyncio.create_task(fork_client.obtain(spec, server, ForkRequest("module", "", [], {}), stop))
    async with asyncio.timeout(SECONDS):
        while server._leader is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    leader = server._leader
    stop.set()
    try:
        assert await asyncio.wait_for(obtaining, 10) is False
        assert not psutil.pid_exists(leader)
    finally:
        if psutil.pid_exists(leader):
            os.kill(leader, signal.SIGKILL)
        await server.close()


@pytest.mark.parametrize(
    ("prepare", "kind", "said"),
    [
        ("import is_not_there", "application", "ModuleNotFoundError: No module named 'is_not_there'"),
        ("raise RuntimeError('nvrtc shared object not found.')", "application", "RuntimeError: nvrtc shared object"),
        ("raise OSError(28, 'No space left on device', '/data/x')", "full", "OSError: [Errno 28] No space left"),
        ("raise RuntimeError('\\u2028\\n' * 100_000)", "application", "RuntimeError: "),
        ("import sys; sys.exit('no CUDA here')", "application", "SystemExit: no CUDA here"),
        ("import os; os._exit(3)", "application", "exit code 3; the pod's log has the reason"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "exit code -9; the pod's log has the reason"),
    ],
)
async def test_why_the_imports_of_ranks_failed_is_in_the_failure(
    tmp_path: Path, prepare: str, kind: str, said: str
) -> None:
    (tmp_path / "imports.py").write_text(f"def prepare():\n    {prepare}\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    server = ForkServer("rljob_trainer.pod.fork_server", "imports", environment)
    with pytest.raises(ForkServerLost) as lost:
        await asyncio.wait_for(server.ready(), SECONDS)
    failure = lost.value.as_failure()
    assert (failure.kind, failure.exception) == (kind, "ForkServerLost")
    assert failure.message.startswith(f"the imports of imports failed: {said}")
    assert bool(failure.lines) == ("exit code" not in said)


STUBBORN = """
import json, os, signal, sys, time
print(json.dumps({"ready": 1}), flush=True)
sys.stdin.readline()
begun, go_on = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as one whose driver call does not return
    os.write(go_on, b"x")
    time.sleep(600)
os.read(begun, 1)
print(json.dumps({"leader": child}), flush=True)
_, status = os.waitpid(child, 0)
print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
"""


@pytest.mark.parametrize(("device", "seconds"), [("gpu", 5.0), ("cpu", 2.0)])
async def test_ranks_that_use_a_gpu_get_the_grace_of_the_spec_before_they_are_killed(
    tmp_path: Path, device: str, seconds: float
) -> None:
    spec = make_spec(trainer={"device": device}, lifecycle={"rankGraceSeconds": 5})
    server = ForkServer("runner", "module", os.environ)
    server._command = (sys.executable, "-c", STUBBORN)
    await server.ready()
    task = asyncio.create_task(server.run(ForkRequest("module", str(tmp_path), [], {})))
    async with asyncio.timeout(SECONDS):
        while server._leader is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began = time.monotonic()
    assert grace_of(spec) == seconds
    async with asyncio.timeout(SECONDS):
        await _kill(server, task, seconds)
    assert task.result() == -signal.SIGKILL and time.monotonic() - began >= seconds
    await server.close()


async def test_how_a_colocated_server_ended_is_left_to_the_part_that_waits_for_it(tmp_path: Path) -> None:
    environment = {names.ENV_POD_NAME: "pod", names.ENV_POD_UID: "uid"}
    settings = Settings("pod", "uid", tmp_path, environment)
    launcher = Launcher(FileChannel(tmp_path), settings, ForkServers("rank", "driver", environment))
    server = await asyncio.create_subprocess_exec("sleep", "600")
    launcher._attempt = cast(Any, SimpleNamespace(pids={server.pid}))
    server.kill()
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 it ends before the loop can hear of it
    launcher._reap_orphans()
    assert await asyncio.wait_for(server.wait(), SECONDS) == -signal.SIGKILL
