"""Calls in threads of their own: which of them count as hung, and end the process."""

import subprocess
import sys

CALLS = """
import asyncio, sys, threading
from rljob_trainer.agents.environments import threads

threads.GRACE_SECONDS = float(sys.argv[1])

async def main():
    ended = threading.Event()
    calls = [asyncio.create_task(threads.in_thread(ended.wait)) for _ in range(threads.MOST_HUNG)]
    for _ in range(threads.MOST_HUNG):
        threads.in_background(ended.wait)
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    if sys.argv[2] == "healthy":
        ended.set()
        for thread in threading.enumerate()[1:]:
            thread.join()
    await asyncio.sleep(2 * threads.GRACE_SECONDS)
    print("lives")

asyncio.run(main())
"""


def run(grace: float, calls: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-c", CALLS, str(grace), calls)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_calls_that_end_in_time_after_they_were_given_up_do_not_end_the_process() -> None:
    found = run(2.0, "healthy")
    assert (found.stdout, found.returncode) == ("lives\n", 0), found.stderr


def test_calls_that_still_run_then_end_the_process() -> None:
    found = run(0.1, "hung")
    assert found.returncode == 1 and "calls of the environment hang: this process ends" in found.stderr
