"""A gateway in a process of its own, as PID 1 starts it, and what it talks to: a driver whose ranks remember, and a rollout server that echoes."""

import asyncio
import os
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from aiohttp import web

from api.specs import make_spec
from rljob_api import names
from rljob_api.protocol import Control, Report, Resume, RolloutEndpoint, ServiceReport
from rljob_trainer.driver.service import ServiceDriver
from rljob_trainer.machine import free_port
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.gateway import decode_work, encode
from rljob_trainer.wire.launcher_files import ProgressFile, report_file
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest, ServedSample
from rljob_trainer.wire.service import ForwardBackward, Work, WorkResult
from rljob_trainer.wire.weights.protocol import SAMPLE
from trainer.pod.gang import wait_for

TOKEN = "token"
POD = "gateway-0"
BASE = "base"


class GatewayProcess:
    """`memory` and `peak`: bytes of the process now, and the most that it had; `seconds`: of the processors that it has used."""

    def __init__(self, root: Path) -> None:
        self.port, self.work_port, self._channel = free_port(), free_port(), root / "channel"
        self._channel.mkdir(parents=True)
        spec = make_spec(task="service", service={"name": BASE}, checkpoint={"path": str(root / "run")})
        gateway = f"http://127.0.0.1:{self.work_port}"
        given = {"name": "demo", "namespace": "n", "job_uid": "u", "attempt": 1, "local": True, "gateway": gateway}
        self.control = Control(**given, resume=Resume(policy="auto"), spec=spec)  # type: ignore[arg-type]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it serves."""
        report_file(self._channel, POD).unlink(missing_ok=True)
        replace(self._channel / names.CONTROL_KEY, self.control.dump_json())
        ports = ("--port", str(self.port), "--work-port", str(self.work_port))
        own = {names.ENV_POD_NAME: POD, names.ENV_POD_UID: "uid", names.ENV_ROLLOUT_TOKEN: TOKEN}
        command = (sys.executable, "-m", "rljob_trainer", "gateway", "--channel", str(self._channel), *ports)
        environment = os.environ | own | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(command, env=environment)
        wait_for("gateway", lambda: self.says)

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()

    @contextmanager
    def full_volume(self, size: int) -> Iterator[None]:
        """None of its files can become larger than this."""
        assert self._process
        soft, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, hard))
        yield
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    @property
    def says(self) -> ServiceReport | None:
        text = read_text(report_file(self._channel, POD))
        return Report.model_validate_json(text).service if text else None

    @property
    def waiting(self) -> int:
        return self.says.waiting if self.says else 0

    @property
    def memory(self) -> int:
        assert self._process
        return int(psutil.Process(self._process.pid).memory_info().rss)

    @property
    def seconds(self) -> float:
        assert self._process
        used = psutil.Process(self._process.pid).cpu_times()
        return used.user + used.system

    @property
    def peak(self) -> int:
        assert self._process
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class Surroundings:
    """Everything else of the service, in a thread. `may_sample` and `may_work`: until then requests wait."""

    def __init__(self, gateway: GatewayProcess, root: Path) -> None:
        self._gateway, self._root, self._port = gateway, root, free_port()
        self.done = Counter[str]()
        """Pieces of work by their kinds."""
        self.sampled, self.executed = Counter[int](), Counter[int]()
        """How often a prompt came, by its only token; how often the ranks did a pass, by its number."""
        self.may_sample, self.may_work = asyncio.Event(), asyncio.Event()
        self._loop, self._ended = asyncio.new_event_loop(), asyncio.Event()

    @contextmanager
    def running(self) -> Iterator["Surroundings"]:
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        thread.start()
        try:
            yield self
        finally:
            self.call(self._ended.set)
            thread.join()

    def call(self, change: object) -> None:
        """For example `may_sample.set`."""
        self._loop.call_soon_threadsafe(change)  # type: ignore[arg-type]

    async def _run(self) -> None:
        app = web.Application()
        app.router.add_post(SAMPLE, self._sample)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        driving = asyncio.create_task(self._drive())
        await asyncio.wait({driving, asyncio.create_task(self._ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        await runner.cleanup()

    async def _sample(self, request: web.Request) -> web.Response:
        (token,) = SampleRequest.read(await request.json()).tokens
        self.sampled[int(token)] += 1
        await self.may_sample.wait()
        echo = ServedSample(np.array([token], "<i4"), np.zeros(1, "<f4"), "stop")
        return web.json_response(SampleAnswer((echo,)).body())

    async def _drive(self) -> None:
        server = RolloutEndpoint(pod="rollout-0", pod_uid="r", url=f"http://127.0.0.1:{self._port}")
        control = self._gateway.control.model_copy(update={"rollouts": [server]})
        driver = ServiceDriver(control, TOKEN, ProgressFile(self._root / "progress.json"))
        try:
            while True:
                await self._do(driver)
        finally:
            await driver.close()

    async def _do(self, driver: ServiceDriver) -> None:
        answer = await driver.next()
        if "work" not in answer:
            return
        (body,) = answer.pieces  # type: ignore[attr-defined]
        work = decode_work(body.tobytes())
        self.done[type(work).__name__] += 1
        if isinstance(work, ForwardBackward):
            await self.may_work.wait()
        await driver.done({"result": np.frombuffer(encode(self._result(work)), np.uint8)})

    def _result(self, work: Work) -> WorkResult:
        """Of a pass: its data's first tokens, as the log-probabilities of all of their targets."""
        if not isinstance(work, ForwardBackward):
            return WorkResult()
        self.executed[work.seq] += 1
        echoes = tuple(np.full(datum.targets.shape, datum.tokens[0], np.float32) for datum in work.data)
        return WorkResult(metrics={"loss:sum": float(work.seq)}, log_probs=echoes)
