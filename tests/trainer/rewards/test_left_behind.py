"""What a user's function leaves behind: daemons, which are nobody's children, do not become more and more, and end with the job."""

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from rljob_api.spec.model import PythonReward, RewardSpec
from rljob_trainer import processes
from rljob_trainer.rewards.manager import RewardManager
from rljob_trainer.rewards.request import RewardFailed, RewardRequest
from rljob_trainer.workers import process

CASE = RewardRequest("1+1=", "2", "2", "sum", (5, 6, 7, 1), prompt_length=2, truncated=True, row=dict)
DAEMONISES = """
import os, pathlib, time

def reward(response):
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.waitpid(child, 0)
    return 1.0
"""
KEEPS = """
import subprocess, sys

def reward(response):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", __file__], start_new_session=True)
    return 1.0
"""


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_PROCESSES", 1)
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.0)


def left(file: Path) -> list[psutil.Process]:
    """Processes that the function in `file` has started and that still run, with their workers."""
    return [p for p in psutil.process_iter() if _runs(p) and str(file) in _words(p)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def manager_of(tmp_path: Path, code: str) -> tuple[RewardManager, Path]:
    file = tmp_path / "reward.py"
    file.write_text(code)
    return RewardManager([RewardSpec(python=PythonReward(path=str(file)))]), file


async def test_daemons_of_a_function_are_ended_when_they_are_too_many_and_all_of_them_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_ORPHANS", 5)
    rewards, file = manager_of(tmp_path, DAEMONISES)
    await rewards.start()
    counts = []
    for _ in range(40):
        assert (await rewards.score(CASE)).score == 1.0
        counts.append(len(left(file)) - 1)
    assert any(later < earlier for earlier, later in pairwise(counts)), "they were ended"
    assert 5 <= max(counts) < 30, "a few may serve many calls"
    await rewards.stop()
    assert left(file) == []


async def test_a_function_that_keeps_too_many_children_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_PROCESSES", 5)
    rewards, file = manager_of(tmp_path, KEEPS)
    await rewards.start()
    for _ in range(5):
        await rewards.score(CASE)
    with pytest.raises(RewardFailed, match=r"its process has started \d+ others that still run; at most 5 may"):
        while True:
            await rewards.score(CASE)
    await rewards.stop()
    assert left(file) == []


async def test_no_answer_waits_until_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with many processes, or whose kernel is slow to tell of them."""
    rewards, _ = manager_of(tmp_path, "def reward(response):\n    return 1.0\n")
    await rewards.start()
    every, counted = processes._processes, threading.Event()

    def when_all_are_answered() -> list[int]:
        assert counted.wait(60)
        return every()

    monkeypatch.setattr(processes, "_processes", when_all_are_answered)
    async with asyncio.timeout(50):
        for _ in range(20):
            await rewards.score(CASE)
    counted.set()
    await rewards.stop()
