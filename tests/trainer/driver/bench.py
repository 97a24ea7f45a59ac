"""One attempt of a driver in the test's own process, and rank 0's end of its channel."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rljob_api import names
from rljob_api.protocol import Checkpoint, Control, GangAddress, Progress, Resume, RolloutEndpoint, SandboxAddress
from rljob_trainer.driver import main
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import Batch, Columns
from rljob_trainer.wire.channel import listen
from rljob_trainer.wire.trajectory import Trajectory
from trainer.driver.servers import EOS, Server

SECONDS = 120
"""Many times what anything takes."""
METRICS = {"train/loss": 0.5, "train/tokens": 48.0}


class Characters:
    """A tokenizer with one token per character, which ends responses with a full stop."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids, *, skip_special_tokens: bool) -> str:
        return "".join(chr(t) for t in token_ids if not (skip_special_tokens and t == EOS))


class Rank(DriverClient):
    """Rank 0, which begins to generate as the loop does: at the start, and after each publication of a new policy."""

    policy: int | None = None

    def start(
        self,
        step: int,
        data: dict[str, Any] | None,
        checkpoints: Sequence[Checkpoint],
        backend: str,
        buffer: Path | None = None,
    ) -> None:
        super().start(step, data, checkpoints, backend, buffer)
        self.evaluate(step)

    def evaluate(self, step: int) -> None:
        super().evaluate(step)
        self.policy = step


class Bench:
    """One attempt's directory, a driver in it, and rank 0's end of the channel."""

    def __init__(self, tmp_path: Path):
        self.root = tmp_path / "run"
        self.service_port = 0
        self.sandboxes: dict[str, list[SandboxAddress]] = {}
        self.local = False
        self._tmp_path = tmp_path
        self.directory = tmp_path / "attempt-1"
        self.directory.mkdir()
        pairs = [(a, b) for a in range(1, 5) for b in range(1, 4)]
        table = pa.table(
            {
                "prompt": [f"{a}+{b}=" for a, b in pairs],
                "answer": [str(a + b) for a, b in pairs],
                "data_source": ["sum"] * 12,
            }
        )
        pq.write_table(table, tmp_path / "train.parquet")
        pq.write_table(table.slice(0, 3), tmp_path / "held.parquet")
        self.spec: dict[str, Any] = {
            "model": {"path": str(tmp_path)},
            "data": {"train": [str(tmp_path / "train.parquet")], "validation": [str(tmp_path / "held.parquet")]},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 2, "promptsPerStep": 4, "samplesPerPrompt": 3},
            "rollout": {"replicas": 2, "minReplicas": 1},
            "checkpoint": {"path": str(self.root)},
            "image": "i",
        }

    def message(self, command: str = "run", rollouts: tuple[RolloutEndpoint, ...] = (), attempt: int = 1) -> Control:
        return Control(
            name="demo",
            namespace="n",
            job_uid="u",
            attempt=attempt,
            command=command,
            gangs={names.ROLE_TRAINER: GangAddress(address="127.0.0.1", master_port=1)},
            service_port=self.service_port,
            resume=Resume(policy="auto"),
            rollouts=list(rollouts),
            sandboxes=self.sandboxes,
            local=self.local,
            spec=self.spec,
        )

    def control(self, command: str = "run", rollouts: tuple[RolloutEndpoint, ...] = ()) -> None:
        control = self.message(command, rollouts)
        scratch = self.directory / "control.tmp"
        scratch.write_text(control.dump_json())
        scratch.replace(self.directory / "control.json")

    async def connect(self) -> Rank:
        socket, error = self.directory / "driver.sock", self.directory / "error-driver.json"
        socket.unlink(missing_ok=True)
        listener = listen(socket)
        rank = Rank(DriverClient.connect(socket, error, 0)._socket)
        self.driver = asyncio.create_task(main.drive(self.directory, listener, "token"))
        rank._socket.settimeout(SECONDS)  # a test that fails must not leave a thread that waits for ever
        return rank

    def progress(self) -> Progress:
        return Progress.model_validate_json((self.directory / "progress.json").read_text())

    async def in_phase(self, phase: str) -> Progress:
        async with asyncio.timeout(SECONDS):
            while True:
                with suppress(FileNotFoundError):
                    if (found := self.progress()).phase == phase:
                        return found
                await asyncio.sleep(0.05)

    async def evaluated(self) -> None:
        """Wait for an evaluation: no batch waits for it, unless servers sleep for training."""
        async with asyncio.timeout(SECONDS):
            while not any("evaluation/reward" in line for line in self.metrics()):  # noqa: ASYNC110 the driver writes it
                await asyncio.sleep(0.05)

    def metrics(self) -> list[dict]:
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in names.metrics_file(self.root).read_text().splitlines()]
        return []


async def call(method, *arguments) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(method, *arguments), SECONDS)


async def until(rank: Rank, key: str) -> Any:
    """What rank 0 gets under `key`, asking until then."""
    async with asyncio.timeout(SECONDS):
        while key not in (answer := await call(rank.next)):
            assert answer == {}, answer
    return answer[key]


async def trained(rank: Rank, step: int) -> list[str]:
    """Rank 0 has trained `step`; the pods that it is to publish to."""
    await call(rank.trained, step, METRICS)
    return await replicas(rank)


async def replicas(rank: Rank) -> list[str]:
    async with asyncio.timeout(SECONDS):
        while not (answer := await call(rank.replicas)):
            pass
    return [r["pod"] for r in answer["replicas"]]


async def save_buffer(rank: Rank, directory: Path) -> dict[str, Any]:
    """The files of the rollout buffer, once they are written."""
    await call(rank.save_buffer, directory)
    while not (written := await call(rank.buffer_saved, True)):
        continue
    return written["files"]


async def publish(rank: Rank, step: int, servers: list[Server], failed: dict[str, str] | None = None) -> None:
    for server in servers:
        server.policy_step = step
    await call(rank.published, step, f"digest{step}", failed or {}, 0.1)
    if rank.policy != step:
        await call(rank.evaluate, step)


@asynccontextmanager
async def begun(
    bench: Bench, servers: list[Server], step: int = 0, data: dict | None = None, buffer: Path | None = None
) -> AsyncIterator[Rank]:
    """Rank 0's end, with the first policy published."""
    bench.control(rollouts=tuple(s.endpoint for s in servers))
    rank = await bench.connect()
    await call(rank.start, step, data, [], "", buffer)
    await until(rank, "newcomers")
    await publish(rank, step, servers)
    try:
        yield rank
    finally:
        bench.driver.cancel()


async def batch(rank: Rank) -> Batch:
    return await call(whole_batch, rank, await until(rank, "batch"))


def whole_batch(rank: Rank, described: dict[str, Any]) -> Batch:
    """In two parts, as two data-parallel ranks would get it."""
    columns = Columns(**rank.read(described["columns"]))
    trajectories: dict[int, Trajectory] = {}
    for rows in (range(0, len(columns), 2), range(1, len(columns), 2)):
        counts = rank.part(rows)
        block = np.empty(arrays.nbytes(counts), np.uint8)
        rank.read_into(arrays.raw(block))
        trajectories |= arrays.trajectories_of(arrays.cut(block, counts), columns, rows)
    return Batch(described["step"], columns, trajectories, described["metrics"])
