"""Run a function on several gloo ranks: processes forked from this one, so that megatron is imported once.

An engine gets ranks of its own: megatron forgets process groups without ending them, and each keeps three threads of which one wakes up
100 times a second. Twenty engines in one gang of ranks were 1,000 threads a rank.
"""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=600)
"""Many times what any function takes: it ends a hang, and decides nothing else."""


def run_ranks(count: int, function: Callable[[], Any]) -> list[Any]:
    """What `function` returned on each of `count` ranks of a new default process group. A rank that raises fails the test with its traceback."""
    with TemporaryDirectory() as directory:
        sys.stdout.flush()
        children = [_fork(rank, count, function, Path(directory)) for rank in range(count)]
        codes = _wait(children)
        results = [_read(Path(directory) / str(rank)) for rank in range(count)]
    failures = [
        f"rank {rank} (exit code {code}):\n{result}"
        for rank, (code, result) in enumerate(zip(codes, results, strict=True))
        if code
    ]
    assert not failures, "\n".join(failures)
    return results


def _fork(rank: int, count: int, function: Callable[[], Any], directory: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ours = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
        os.environ.update(ours, TORCH_FR_BUFFER_SIZE="0")  # as in rljob_trainer.rank.main
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=count, timeout=TIMEOUT
        )
        result, code = function(), 0
    except BaseException:
        result = traceback.format_exc()
    finally:
        (directory / str(rank)).write_bytes(pickle.dumps(result))
        sys.stdout.flush()
        os._exit(code)


def _wait(children: list[int]) -> list[int]:
    deadline, codes = time.monotonic() + TIMEOUT.total_seconds(), {}
    while len(codes) < len(children) and time.monotonic() < deadline:
        for child in set(children) - set(codes):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for child in set(children) - set(codes):
        os.kill(child, 9)
        codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [codes[child] for child in children]


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else "no result"
