"""PID 1 of a gateway's pod, with a real gateway: it serves while the operator names it, and what clients have outlives its process."""

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from api.specs import raw_spec
from rljob_api import names
from rljob_api.protocol import Control, Report, Resume
from rljob_api.spec import RLJobSpec
from rljob_api.text import http_url
from rljob_trainer.gateway.files import Claim
from rljob_trainer.machine import free_port, loopback
from rljob_trainer.pod.gateway import GatewayPod
from trainer.pod.pods import Channel

API = "/api/v1/"


class Pod:
    """A gateway's pod at work."""

    def __init__(self, directory: Path) -> None:
        self.channel, self.port, self._work_port, self._directory = Channel(), free_port(), free_port(), directory
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            names.ENV_POD_NAME: "demo-gateway-0",
            names.ENV_POD_UID: "uid",
            names.ENV_POD_IP: loopback(),
            names.ENV_WORK: str(directory / "work"),
            names.ENV_ROLLOUT_TOKEN: "token",
        }
        self.pod = GatewayPod(self.channel, environment, self.port, self._work_port)

    def command(self, named: bool = True, number: int = 1, **service: Any) -> None:
        """A new control message, in which this pod is the gateway or none is."""
        spec = raw_spec(task="service", service=service, checkpoint={"path": str(self._directory / "run")})
        url = http_url(loopback(), self._work_port) if named else ""
        common = {"name": "demo", "namespace": "ns", "job_uid": "job", "resume": Resume(policy="auto")}
        self.channel.words.put_nowait(
            Control(**common, gateway=url, gateway_number=number, spec=RLJobSpec.model_validate(spec))
        )

    async def says(self, clients: int) -> Report:
        return await self.channel.wait(lambda r: r.service is not None and r.service.clients == clients)

    async def post(self, path: str, **body: Any) -> Any:
        url = http_url(loopback(), self.port) + API + path
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as answer:
            return await answer.json()

    async def health(self) -> int:
        async with aiohttp.ClientSession() as client, client.get(f"{self._work_url}/health") as answer:
            return answer.status

    @property
    def _work_url(self) -> str:
        return http_url(loopback(), self._work_port)

    @property
    def process(self) -> psutil.Process:
        children = psutil.Process().children()
        (found,) = [child for child in children if str(self._work_port) in child.cmdline()]
        return found


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Pod]:
    pod = Pod(directory)
    task = asyncio.create_task(pod.pod.run())
    try:
        yield pod
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def few_open_files() -> Iterator[None]:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


@pytest.mark.usefixtures("few_open_files")
async def test_a_gateway_serves_while_it_is_named_and_what_clients_have_outlives_its_process(tmp_path: Path) -> None:
    async with running(tmp_path) as pod:
        pod.command(named=False)
        first = await pod.channel.wait(lambda r: r.state == "idle")
        pod.command()
        assert (await pod.says(0)).state == "running" and await pod.health() == 200
        await pod.post("create_session")
        allowed, most = pod.process.rlimit(psutil.RLIMIT_NOFILE)
        assert allowed == most, "a sample is an open file"
        pod.process.kill()
        lost = await pod.channel.wait(lambda r: r.failure is not None)
        assert lost.state == "idle" and lost.failure and "SIGKILL" in lost.failure.exception
        again = await pod.says(1)
        assert again.failure is None and again.boot_id == first.boot_id
        pod.command(maxModels=3)  # what it is started for
        await pod.channel.wait(lambda r: r.state == "idle")
        await pod.says(1)
        process = pod.process
        pod.command(named=False)
        await pod.channel.wait(lambda r: r.state == "idle")
        assert not process.is_running()


async def test_a_gateway_that_cannot_start_says_why_and_starts_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "service").write_text("in the way")
    async with running(tmp_path) as pod:
        pod.command()
        lost = (await pod.channel.wait(lambda r: r.failure is not None)).failure
        assert lost and lost.exception == "exit code 1" and "Error: " in lost.message and len(lost.lines) > 5
        (tmp_path / "run" / "service").unlink()
        assert (await pod.says(0)).failure is None


async def test_a_gateway_that_another_one_has_followed_tries_again_and_serves_once_it_is_named_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as pod:
        root = tmp_path / "run" / "service"
        Claim(root, "job", 2)
        pod.command(number=1)
        await pod.channel.wait(lambda r: r.failure is not None and "another gateway has claimed" in r.failure.message)
        (root / "owner").unlink()  # whatever ends the other claim
        assert (await pod.says(0)).state == "running"
        Claim(root, "job", 2)
        await pod.channel.wait(lambda r: r.failure is not None)
        pod.command(number=3)
        assert (await pod.says(0)).state == "running"
    Claim(root, "other", 1).check()  # it has ended properly
