"""Who our children are, and what becomes of them."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rljob_trainer import processes
from rljob_trainer.processes import FAMILY, ProcessTable, ProcessTree, children, start_piped

PR_SET_NAME = 15
"""linux/prctl.h"""


def test_a_child_whose_name_is_cut_within_a_letter_is_one_too() -> None:
    name = "rank of 训练".encode()[:-1]
    code = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_NAME}, {name!r}); print('named', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert child.pid in children()
        child.kill()


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = b"x" * 400_000_000  # takes a moment to give back
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def test_a_family_knows_its_daemons_and_ends_them() -> None:
    family, other = ProcessTree(), ProcessTree()
    variables = dict(os.environ) | family.environment
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, env=variables) as first:
        assert first.stdout
        daemon = psutil.Process(int(first.stdout.readline()))
        while family.orphans(first.pid) != {daemon.pid}:  # its parent takes a moment to end
            time.sleep(0.01)
        assert first.pid in family.members() and not other.members()
        family.kill()
        assert family.members() == {}
        assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE


def test_those_who_look_at_processes_at_about_the_same_time_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, every, table = [], processes._processes, ProcessTable()

    def noted() -> list[int]:
        looks.append(time.monotonic())
        return every()

    monkeypatch.setattr(processes, "_processes", noted)
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: table.living(60), range(8)))
    assert len(looks) == 1 and all(os.getpid() in living for living in seen)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid not in table.living(60), "it is newer than what is shared"
        assert table.living(0)[child.pid].parent == os.getpid()
        child.kill()


TITLED = """
import os, time
from setproctitle import setproctitle
if os.fork() == 0:
    setproctitle("VLLM::EngineCore")
    held = b"x" * 400_000_000
    print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_family_waits_for_a_member_whose_title_has_overwritten_its_environment() -> None:
    family = ProcessTree()
    variables = dict(os.environ) | family.environment
    with subprocess.Popen(
        [sys.executable, "-c", TITLED], stdout=subprocess.PIPE, env=variables, start_new_session=True
    ) as first:
        family.lead(first.pid)
        assert first.stdout
        engine = psutil.Process(int(first.stdout.readline()))
        assert not engine.environ().get(FAMILY)
        assert family.members() == {first.pid: os.getpid(), engine.pid: first.pid}
        first.kill()
        first.wait()
        family.kill()
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


TURNS = range(16)
"""Of the event loop, after which the start of a process is cancelled: it takes fewer."""


async def begun(turns: int, *command: str) -> asyncio.Task[asyncio.subprocess.Process]:
    starting = asyncio.create_task(start_piped(command or ("sleep", "60"), os.environ))
    for _ in range(turns):
        await asyncio.sleep(0)
    return starting


def lives(pid: int) -> bool:
    """False for one that nobody has collected yet: its loop has ended, or takes a moment."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_none_but(known: set[int]) -> bool:
    """Soon: the kernel takes a moment to end a process."""
    deadline = time.monotonic() + 10
    while (living := any(map(lives, children() - known))) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not living


def given_back(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """What was started before it could be cancelled is its caller's."""
    if not starting.cancelled():
        os.kill(starting.result().pid, signal.SIGKILL)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_start_that_is_cancelled_ends_and_leaves_no_process(turns: int) -> None:
    known = children()
    starting = await begun(turns)
    starting.cancel()
    await asyncio.wait({starting}, timeout=10)
    assert starting.done()
    given_back(starting)
    assert await asyncio.to_thread(has_none_but, known)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_start_that_is_cancelled_as_the_process_ends_is_cancelled(turns: int) -> None:
    starting = await begun(turns, "true")
    time.sleep(0.1)  # noqa: ASYNC251 - the loop is to see nothing of its end
    starting.cancel()
    await asyncio.wait({starting}, timeout=10)
    assert starting.cancelled() or starting.result()


@pytest.mark.parametrize("turns", TURNS)
def test_a_loop_that_ends_while_a_process_starts_ends(turns: int) -> None:
    known, starting = children(), list[asyncio.Task[asyncio.subprocess.Process]]()

    async def main() -> None:
        starting.append(await begun(turns))

    ending = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    given_back(starting[0])
    assert has_none_but(known)
