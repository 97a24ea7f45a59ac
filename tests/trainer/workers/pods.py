"""Worker pods in the process of the test, which reach a whole driver over loopback."""

import asyncio
from pathlib import Path

import psutil
import pytest

from rljob_api import names
from rljob_trainer.driver import main
from rljob_trainer.machine import free_port
from rljob_trainer.pod import worker_life
from rljob_trainer.pod.worker import WorkerPod
from trainer.driver.bench import Bench, Characters
from trainer.pod.pods import Channel, until

TOKEN = "token"
"""Bench's."""


def impatient_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A driver that worker pods connect to, and pods that try again at once."""
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    monkeypatch.setattr(worker_life, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(worker_life, "FIRST_BACKOFF_SECONDS", 0.05)
    monkeypatch.setenv(names.ENV_POD_IP, "127.0.0.1")
    found = Bench(tmp_path)
    found.service_port = free_port()
    return found


class Pod:
    """A worker pod at work."""

    def __init__(self, bench: Bench, name: str = "demo-worker-0", token: str = TOKEN) -> None:
        self.bench, self.channel, self.port = bench, Channel(), free_port()
        environment = {names.ENV_POD_NAME: name, names.ENV_POD_UID: "uid", names.ENV_ROLLOUT_TOKEN: token}
        self.inside = WorkerPod(self.channel, environment, names.role_of("demo", name), self.port)
        self.task = asyncio.create_task(self.inside.run())
        self.say()

    def say(self, **changes: object) -> None:
        self.channel.words.put_nowait(self.bench.message(**changes))  # type: ignore[arg-type]

    async def processes(self, count: int) -> list[psutil.Process]:
        """Once there are so many."""
        await until(lambda: len(self.inside.pids) == count)
        return [psutil.Process(pid) for pid in self.inside.pids]

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task
