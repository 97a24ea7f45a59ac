"""A service on the cluster, the way to its gateway, and scripts of clients with the official SDK."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.conftest import UNTRAINED, Lab
from e2e.job import EXAMPLES, Job, merge
from e2e.prepare import WORKBENCH
from rljob_api import names

CLIENT = Path(__file__).with_name("service_client.py")
MODEL = "arithmetic"
"""What clients of the example call it."""
START, PORT = "/data/starts/service", 18470
LONGEST = 1500.0
"""Seconds of a script, with all that happens meanwhile."""


def start(lab: Lab, name: str, **changes: object) -> Job:
    """The example under another name, with a model of random numbers and what a test changes."""
    lab.kube.execute(WORKBENCH, "python", "-c", UNTRAINED, START, timeout=300)
    manifest = yaml.safe_load((EXAMPLES / "service" / "service.yaml").read_text())
    manifest["metadata"]["name"] = name
    own = {
        "image": lab.provider.trainer_image,
        "model": {"path": f"{START}/untrained"},
        "service": {"checkpointSeconds": 5},
        "checkpoint": {"path": f"/data/runs/{name}"},
    }
    manifest["spec"] = merge(merge(manifest["spec"], own), changes)
    lab.kube.apply(manifest)
    return Job(lab.kube, name)


@contextmanager
def reached(job: Job) -> Iterator[str]:
    """The gateway, as this machine reaches it. A connection that ends with its pod is made again."""
    ended = threading.Event()
    service = f"service/{names.gang(job.name, names.ROLE_GATEWAY)}"
    command = ["kubectl", "-n", job.kube.namespace, "port-forward", service, f"{PORT}:{names.GATEWAY_PORT}"]

    def forward() -> None:
        while not ended.is_set():
            with subprocess.Popen(command, env=job.kube.environment) as process:
                while process.poll() is None and not ended.wait(0.2):
                    pass
                process.terminate()
            ended.wait(0.5)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(forward)
        try:
            yield f"http://127.0.0.1:{PORT}"
        finally:
            ended.set()


def script(
    url: str,
    steps: int,
    seconds: float,
    rank: int,
    events: Mapping[int, Callable[[], object]] | None = None,
    pause: int = 0,
) -> dict[str, Any]:
    """What a script finds that takes `steps` of `seconds` at least. `events`: what happens after a step of it, while it takes the next one.
    After step `pause` it asks for nothing until the event has ended."""
    command = [sys.executable, str(CLIENT), url, MODEL, *map(str, (steps, seconds, rank, pause))]
    environment = os.environ | {"TINKER_TELEMETRY": "0"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        watchdog = threading.Timer(LONGEST, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                if not line.startswith("step "):
                    found: dict[str, Any] = json.loads(line)
                    continue
                step = int(line.split()[1])
                (events or {}).get(step, lambda: None)()
                if step == pause:
                    process.stdin.write("\n")
                    process.stdin.flush()
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    assert process.returncode == 0
    return found
