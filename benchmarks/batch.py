"""A step's batch from the driver to the ranks: seconds, memory of a rank, and how long the driver's event loop stands still.

    python -m benchmarks.batch [--prompts N] [--samples N] [--tokens N] [--ranks N] [--record DIR]

A driver's process holds the responses of a step of 1,024 prompts x 8 samples x 3,072 tokens, assembles the batch (and records it with --record), and
serves it over its socket; 8 data-parallel ranks of gloo on this machine's CPU receive it as the trainer does (scatter.py). Goals: handed over in less
than 5 s; a rank's memory rises by at most 1.5 times the bytes of its own part; the loop is never blocked for more than 50 ms.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec

PROMPT = 100
"""Tokens of a trajectory that are the prompt's."""
TICK_SECONDS = 0.005


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.batch")
    parser.add_argument("--prompts", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--record", type=Path, help="record the batch below this directory as well")
    options = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from trainer.ranks import run_ranks

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        driver = multiprocessing.get_context("spawn").Process(target=drive, args=(directory, options))
        driver.start()
        rows = run_ranks(options.ranks, lambda: receive(directory, options))
        driver.join()
        found = json.loads((directory / "driver.json").read_text())
    tokens = options.prompts * options.samples * options.tokens
    ratios = [row.rise / row.part for row in rows]
    print(f"{tokens / 1e6:.1f} M tokens, {options.ranks} ranks")
    print(f"handed over in        {max(row.seconds for row in rows):.2f} s (goal 5)")
    print(f"a rank's memory rises by {min(ratios):.2f} to {max(ratios):.2f} of its part (goal 1.5)")
    print(f"driver: assembled in  {found['assembled']:.2f} s")
    print(
        f"driver: loop blocked  {1000 * found['assembling']:.0f} ms while it assembled, {1000 * found['serving']:.0f} ms while it served (goal 50)"
    )


class Received(NamedTuple):
    """By one rank."""

    seconds: float
    rise: float
    """Of its memory at the highest, bytes."""
    part: float
    """Bytes of what it needed."""


class Alone(NamedTuple):
    """A data-parallel copy of one rank."""

    data_rank: int

    def share(self, block: Any) -> None:
        """There is nobody else."""


def drive(directory: Path, options: argparse.Namespace) -> None:
    """The driver's process."""
    from rljob_trainer.wire.channel import listen

    asyncio.run(_drive(directory, listen(directory / "driver.sock"), options))


async def _drive(directory: Path, listener: Any, options: argparse.Namespace) -> None:
    from rljob_trainer.driver.driver import announced, part_of
    from rljob_trainer.driver.server import serve

    outcomes = responses(options)
    lag = Lag()
    began = time.monotonic()
    batch = await asyncio.to_thread(assembled, outcomes, options)
    found = {"assembled": time.monotonic() - began, "assembling": lag.read()}

    async def next() -> Any:
        return announced(batch)

    async def part(rows: list[int]) -> Any:
        return part_of(batch, rows)

    async def end(export: str) -> None: ...

    await serve(listener, {"next": next, "part": part, "end": end}, {"heartbeat": lambda count: None})
    (directory / "driver.json").write_text(json.dumps(found | {"serving": lag.read()}))


class Lag:
    """The longest time that the event loop did not come back to a task that asks for it every few milliseconds: seconds of its thread's own work,
    so that other processes of a busy machine do not count."""

    def __init__(self) -> None:
        self._longest, self._task = 0.0, asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self._longest = max(self._longest, time.thread_time() - before)

    def read(self) -> float:
        """Since the last time."""
        longest, self._longest = self._longest, 0.0
        return longest


def responses(options: argparse.Namespace) -> list[Any]:
    """What the rollouts answered, scored."""
    from rljob_trainer.driver.buffer.assembly import Outcome
    from rljob_trainer.wire.trajectory import Trajectory

    chance = np.random.default_rng(0)
    found = []
    for group in range(options.prompts):
        for sample in range(options.samples):
            tokens = chance.integers(0, 150_000, options.tokens, dtype=np.int32)
            log_probs = -chance.random(options.tokens - PROMPT, dtype=np.float32)
            fields = {
                "prompt_index": group,
                "group": group,
                "sample": sample,
                "finish_reason": "stop",
                "data_source": "s",
            }
            made = Trajectory.of_response(
                tokens[:PROMPT], tokens[PROMPT:], log_probs, 0, reward=float(sample % 2), **fields
            )
            found.append(Outcome(group, sample, made))
    return found


def assembled(outcomes: list[Any], options: argparse.Namespace) -> Any:
    from rljob_trainer.driver.buffer.assembly import assemble
    from rljob_trainer.driver.buffer.batch_files import record

    batch = assemble(1, range(1), options.prompts, options.samples, outcomes, {})
    if options.record:
        record(options.record, batch, 1.0)
    return batch


def receive(directory: Path, options: argparse.Namespace) -> Received:
    """On a rank."""
    from rljob_trainer.megatron.batching import Planner
    from rljob_trainer.rank.driver_client import DriverClient
    from rljob_trainer.rank.scatter import Scatter
    from rljob_trainer.wire.collective import Ranks

    layout, spec = Layout(options.ranks), spec_of(options)
    ranks = Ranks(600)
    driver = DriverClient.connect(directory / "driver.sock", directory / "error", 60) if ranks.is_first else None
    scatter = Scatter(ranks, driver, Alone(ranks.rank), Planner(spec, layout).parts)
    answer = ranks.broadcast(driver.next() if driver else None)  # the first answer comes once the batch is assembled
    before, began = reset_peak(), time.monotonic()
    batch = scatter.receive(answer["batch"])
    ranks.barrier()
    seconds, rise = time.monotonic() - began, peak() - before
    sizes = sum(segment.tokens.nbytes for t in batch.trajectories.values() for segment in t.segments)
    sampled = [segment.log_probs for t in batch.trajectories.values() for segment in t.sampled_segments]
    sizes += sum(log_probs.nbytes for log_probs in sampled if log_probs is not None)
    if driver:
        driver.end("")
    return Received(seconds, rise, sizes)


def spec_of(options: argparse.Namespace) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": "/none"},
            "data": {"train": ["/none"]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1, "promptsPerStep": options.prompts, "samplesPerPrompt": options.samples},
            "checkpoint": {"path": "/none"},
            "image": "none",
        }
    )


def reset_peak() -> float:
    """Resident bytes now, which are the highest from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    line = next(line for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines() if line.startswith(name))
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    main()
