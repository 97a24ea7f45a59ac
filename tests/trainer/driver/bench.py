"""One attempt of a driver in the test's own process, and rank 0's end of its channel."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_api import names
from rljob_api.protocol import Control, Progress, Resume, RolloutEndpoint
from rljob_trainer.batch import Batch
from rljob_trainer.buffer.batch_files import from_text
from rljob_trainer.driver import main
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.driver.frame import listen
from trainer.driver.servers import EOS, Server

METRICS = {"train/loss": 0.5, "train/tokens": 48.0}


class Characters:
    """A tokenizer with one token per character, which ends responses with a full stop."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids, *, skip_special_tokens: bool) -> str:
        return "".join(chr(t) for t in token_ids if not (skip_special_tokens and t == EOS))


class Bench:
    """One attempt's directory, a driver in it, and rank 0's end of the channel."""

    def __init__(self, tmp_path: Path):
        self.root = tmp_path / "run"
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

    def control(self, command: str = "run", rollouts: tuple[RolloutEndpoint, ...] = ()) -> None:
        control = Control(
            name="demo",
            namespace="n",
            job_uid="u",
            attempt=1,
            command=command,
            resume=Resume(policy="auto"),
            rollouts=list(rollouts),
            spec=self.spec,
        )
        scratch = self.directory / "control.tmp"
        scratch.write_text(control.dump_json())
        scratch.replace(self.directory / "control.json")

    async def connect(self) -> DriverClient:
        socket, error = self.directory / "driver.sock", self.directory / "error-driver.json"
        socket.unlink(missing_ok=True)
        listener = listen(socket)
        rank = DriverClient.connect(socket, error, 0)
        self.driver = asyncio.create_task(main.drive(self.directory, listener, "token"))
        rank._socket.settimeout(10)  # a test that fails must not leave a thread that waits for ever
        return rank

    def progress(self) -> Progress:
        return Progress.model_validate_json((self.directory / "progress.json").read_text())

    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in names.metrics_file(self.root).read_text().splitlines()]


async def call(method, *arguments) -> Any:
    return await asyncio.wait_for(asyncio.to_thread(method, *arguments), 10)


async def until(rank: DriverClient, verb: str) -> dict[str, Any]:
    """Rank 0 asks until the driver says `verb`; newcomers are published to on the way, by whoever reads the returned list."""
    for _ in range(20):
        if (word := await call(rank.next))["do"] == verb:
            return word
        assert word["do"] == "wait", word
    raise AssertionError(f"{verb} never came")


async def trained(rank: DriverClient, step: int) -> list[str]:
    """Rank 0 has trained `step`; the pods that it is told to publish to."""
    await call(rank.trained, step, METRICS)
    return [r["pod"] for r in (await until(rank, "publish"))["replicas"]]


async def publish(rank: DriverClient, step: int, servers: list[Server], failed: dict[str, str] | None = None) -> None:
    for server in servers:
        server.policy_step = step
    await call(rank.published, step, f"digest{step}", failed or {}, 0.1)


@asynccontextmanager
async def begun(
    bench: Bench, servers: list[Server], step: int = 0, data: dict | None = None
) -> AsyncIterator[DriverClient]:
    """Rank 0's end, with the first policy published."""
    bench.control(rollouts=tuple(s.endpoint for s in servers))
    rank = await bench.connect()
    await call(rank.start, step, data, [], "")
    await until(rank, "publish")
    await publish(rank, step, servers)
    try:
        yield rank
    finally:
        bench.driver.cancel()


async def batch(rank: DriverClient) -> Batch:
    return from_text((await until(rank, "train"))["batch"])
