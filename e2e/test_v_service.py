"""A loop of a client's own trains adapters, or all parameters, on the cluster by the official SDK, while pods of the service are killed, and while it
is suspended."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.conftest import UNTRAINED, Lab
from e2e.job import EXAMPLES, Job
from e2e.kube import wait_for
from e2e.prepare import WORKBENCH
from rljob_api import names

pytestmark = pytest.mark.extra

CLIENT = Path(__file__).with_name("service_client.py")
START, PORT, STEPS, SECONDS = "/data/starts/service", 18470, 12, 2.0
LONGEST = 1500.0
"""Seconds of a script, with all that happens meanwhile."""


@dataclass(frozen=True)
class Offer:
    """What a service trains."""

    service: dict[str, int]
    """Of its section."""
    rank: int
    """That the script asks for."""


OFFERS = {"adapters": Offer({}, 4), "parameters": Offer({"maxRank": 0, "maxModels": 1}, 0)}


@pytest.fixture(scope="module", params=OFFERS.values(), ids=OFFERS)
def offer(request: pytest.FixtureRequest) -> Offer:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def job(empty_lab: Lab, offer: Offer) -> Iterator[Job]:
    empty_lab.kube.execute(WORKBENCH, "python", "-c", UNTRAINED, START, timeout=300)
    manifest = yaml.safe_load((EXAMPLES / "service" / "service.yaml").read_text())
    manifest["spec"] |= {"image": empty_lab.provider.trainer_image, "checkpoint": {"path": f"/data/runs/{offer.rank}"}}
    manifest["spec"]["model"]["path"] = f"{START}/untrained"
    manifest["spec"]["service"] |= {"checkpointSeconds": 5} | offer.service
    empty_lab.kube.apply(manifest)
    job = Job(empty_lab.kube, manifest["metadata"]["name"])
    job.wait_for_state("Running", timeout=900)
    yield job
    job.delete()


@pytest.fixture(scope="module")
def url(job: Job) -> Iterator[str]:
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
        yield f"http://127.0.0.1:{PORT}"
        ended.set()


def script(url: str, offer: Offer, events: dict[int, Callable[[], None]]) -> dict[str, Any]:
    """What a script finds. `events`: what happens after a step of it."""
    command = [sys.executable, str(CLIENT), url, "arithmetic", str(STEPS), str(SECONDS), str(offer.rank)]
    environment = os.environ | {"TINKER_TELEMETRY": "0"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        watchdog = threading.Timer(LONGEST, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                if line.startswith("step "):
                    events.get(int(line.split()[1]), lambda: None)()
                else:
                    found: dict[str, Any] = json.loads(line)
        finally:
            watchdog.cancel()
    assert process.returncode == 0
    return found


@pytest.fixture(scope="module")
def undisturbed(url: str, offer: Offer) -> dict[str, Any]:
    return script(url, offer, {})


def test_a_loop_learns_and_samples_what_it_has_learnt(undisturbed: dict[str, Any]) -> None:
    losses = undisturbed["losses"]
    assert losses[-1] < 0.7 * losses[0]
    assert undisturbed["served"] == pytest.approx(undisturbed["log_probs"], abs=1e-4)


def test_a_loop_whose_gateway_trainer_and_server_are_killed_ends_with_the_same_bits(
    job: Job, url: str, offer: Offer, undisturbed: dict[str, Any]
) -> None:
    def kill(role: str) -> Callable[[], None]:
        pod = names.pod(job.name, role, 0)
        return lambda: job.kube.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false") and None

    events = {3: kill(names.ROLE_GATEWAY), 6: kill(names.ROLE_TRAINER), 9: kill(names.ROLE_ROLLOUT)}
    found = script(url, offer, events)
    assert (found["losses"], found["log_probs"]) == (undisturbed["losses"], undisturbed["log_probs"])
    status = job.status()
    assert status.attempt is not None and status.attempt.number >= 2


def test_a_loop_waits_while_its_service_is_suspended_and_ends_with_the_same_bits(
    job: Job, url: str, offer: Offer, undisturbed: dict[str, Any]
) -> None:
    def suspend() -> None:
        job.kube.plugin("suspend", job.name)
        job.wait_for_state("Suspended", timeout=300)
        wait_for("no trainer", lambda: not job.pods(names.ROLE_TRAINER), 120)
        assert len(job.pods(names.ROLE_GATEWAY)) == 1, "clients wait at it"
        resumed.submit(job.kube.plugin, "resume", job.name)

    with ThreadPoolExecutor(1) as resumed:
        found = script(url, offer, {5: suspend})
    assert (found["losses"], found["log_probs"]) == (undisturbed["losses"], undisturbed["log_probs"])
