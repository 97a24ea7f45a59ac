"""Pods of rollouts, in the process of the test: a supervisor, and both directions of its channel in memory."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from rljob_api import names
from rljob_api.protocol import Control, Report, Resume, RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import free_port
from rljob_trainer.pod.channel import ProtocolMismatch
from rljob_trainer.pod.supervisor import Supervisor
from rljob_trainer.wire.rollout_client import RolloutClient
from trainer.server.servers import TOKEN, spec

SECONDS = 120.0
"""Many times what anything takes."""


class Channel:
    """Both directions in memory."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[Control | ProtocolMismatch] = asyncio.Queue()
        self.reports: list[Report] = []
        self.reported = asyncio.Condition()

    async def controls(self) -> AsyncIterator[Control]:
        while True:
            word = await self.words.get()
            if isinstance(word, ProtocolMismatch):
                raise word
            yield word

    async def report(self, report: Report) -> None:
        async with self.reported:
            self.reports.append(report)
            self.reported.notify_all()

    async def wait(self, condition: Callable[[Report], bool], seconds: float = SECONDS) -> Report:
        """The newest report that fulfils a condition, once there is one after those seen so far."""
        seen = len(self.reports)
        async with asyncio.timeout(seconds), self.reported:
            while True:
                if match := [r for r in self.reports[max(seen - 1, 0) :] if condition(r)]:
                    return match[-1]
                await self.reported.wait()


class Pod:
    """A supervisor at work."""

    def __init__(self, model: Path = Path("/model"), name: str = "demo-rollout-0") -> None:
        self.channel, self.port, self.model, self.name = Channel(), free_port(), model, name
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            names.ENV_ROLLOUT_TOKEN: TOKEN,
            names.ENV_POD_NAME: name,
            names.ENV_POD_UID: "uid",
        }
        self.task = asyncio.create_task(Supervisor(self.channel, environment, self.port).run())

    @property
    def boot_id(self) -> str:
        """Once it has reported."""
        return self.channel.reports[0].boot_id

    @property
    def endpoint(self) -> RolloutEndpoint:
        return RolloutEndpoint(pod=self.name, pod_uid=self.boot_id, url=f"http://127.0.0.1:{self.port}")

    def say(self, attempt: int, **vllm_args: object) -> None:
        self.order(spec(self.model, vllmArgs=vllm_args), attempt)

    def order(self, spec: RLJobSpec, attempt: int = 1) -> None:
        self.channel.words.put_nowait(control(spec, attempt))

    async def state(self, attempt: int = 0) -> dict:
        async with RolloutClient(self.endpoint, TOKEN, attempt) as client:
            return await client.state()

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def control(spec: RLJobSpec, attempt: int) -> Control:
    return Control(
        name="demo", namespace="default", job_uid="job", attempt=attempt, resume=Resume(policy="auto"), spec=spec
    )


def is_running(report: Report) -> bool:
    return report.state == "running"


def words(process: psutil.Process) -> list[str]:
    """Of its command; none of one that has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
