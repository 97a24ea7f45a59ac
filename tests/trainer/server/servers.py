"""What the tests need to talk to a real server."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rljob_api import names
from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.machine import free_port
from rljob_trainer.pod.arguments import pool_arguments, server_environment

TOKEN = "secret"
READY_SECONDS = 900
"""A machine that is busy with other tests takes minutes to import vLLM."""


def spec(model: Path, image_key: str | None = None, **rollout: object) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 200, "imageKey": image_key},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1},
            "trainer": {"device": "cpu"},
            "rollout": {"sampling": {"maxTokens": 100}} | rollout,
            "checkpoint": {"path": "/data/checkpoints"},
            "image": "trainer",
        }
    )


@dataclass
class Server:
    """One running server."""

    endpoint: RolloutEndpoint
    pid: int
    log: Path
    followers: Sequence["Server"] = ()
    """The other parts of a server of several pods, which answer nothing."""

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Status and body of GET."""
        request = urllib.request.Request(self.endpoint.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    return
            assert psutil.pid_exists(self.pid), self.log.read_text()[-4000:] if self.log.exists() else "it left no log"
            time.sleep(0.2)
        raise TimeoutError(self.log.read_text()[-4000:])

    def kill(self) -> None:
        """With everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@contextlib.contextmanager
def pool_server(pool: dict[str, Any], log: Path) -> Iterator[Server]:
    """One server of such a pool, until the end of the block."""
    given, port = spec(Path("/model")).model_dump(by_alias=True, exclude_defaults=True), free_port()
    job = RLJobSpec.model_validate(given | {"pools": [pool]})
    environment = server_environment(job, 1, os.environ) | {names.ENV_ROLLOUT_TOKEN: TOKEN}
    command = [sys.executable, "-m", "rljob_trainer.server.server", *pool_arguments(job, job.pools[0], port)]
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream, start_new_session=True)
    served = Server(RolloutEndpoint(pod="p", pod_uid="p", url=f"http://127.0.0.1:{port}"), process.pid, log)
    try:
        served.wait()
        yield served
    finally:
        served.kill()
        process.wait(120)
