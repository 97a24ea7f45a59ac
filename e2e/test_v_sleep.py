"""Two clients of a service that sleeps when nobody asks, and that somebody suspends: they wait, lose nothing and train on by themselves."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from e2e import service
from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import wait_for
from rljob_api import names, reasons

pytestmark = pytest.mark.extra

IDLE = 15
"""Seconds without a request."""
SUSPENDED = 20.0
"""Seconds without a trainer."""
MEETING = 300.0
"""Seconds after which the other client has failed."""
RANKS, STEPS, SECONDS, AT = (4, 8), 8, 2.0, 3

Found = list[dict[str, Any]]
"""Of each client."""


@pytest.fixture(scope="module")
def job(empty_lab: Lab) -> Iterator[Job]:
    job = service.start(empty_lab, "sleeper", service={"idleSeconds": IDLE})
    job.wait_for_state("Running", timeout=900)
    yield job
    job.delete()


@pytest.fixture(scope="module")
def url(job: Job) -> Iterator[str]:
    with service.reached(job) as url:
        yield url


def clients(url: str, meet: Callable[[], None] | None = None) -> Found:
    """What two find at once. After step AT they pause until both are there, and `meet` has happened once."""
    both = threading.Barrier(len(RANKS), action=meet, timeout=MEETING)
    with ThreadPoolExecutor(len(RANKS)) as pool:
        found = [pool.submit(service.script, url, STEPS, SECONDS, rank, {AT: both.wait}, AT) for rank in RANKS]
        return [future.result() for future in found]


@pytest.fixture(scope="module")
def undisturbed(url: str) -> Found:
    return clients(url)


def released(job: Job) -> None:
    """All pods but the one at which clients wait."""
    job.wait_for_state("Suspended", timeout=300)
    wait_for("the gateway alone", lambda: roles(job) == [names.ROLE_GATEWAY], 120)


def roles(job: Job) -> list[str]:
    return [pod["metadata"]["labels"][names.LABEL_ROLE] for pod in job.pods()]


def attempt(job: Job) -> int:
    found = job.status().attempt
    assert found
    return found.number


def said(job: Job, reason: str) -> bool:
    return any(
        event["reason"] == reason for event in job.kube.list("event") if event["involvedObject"]["name"] == job.name
    )


def test_a_service_sleeps_while_two_clients_pause_and_wakes_with_their_next_request(
    job: Job, url: str, undisturbed: Found
) -> None:
    before = attempt(job)
    assert clients(url, lambda: released(job)) == undisturbed
    status = job.status()
    assert attempt(job) == before + 1 and not status.asleep and status.restarts.total == 0
    assert said(job, reasons.IDLE) and said(job, reasons.WOKEN)


def test_two_clients_wait_through_a_suspension_and_train_on_by_themselves(
    job: Job, url: str, undisturbed: Found
) -> None:
    before = attempt(job)

    def suspend() -> None:
        job.kube.plugin("suspend", job.name)
        released(job)
        job.wait("both wait", lambda status: status.service.waiting >= len(RANKS), 60)
        time.sleep(SUSPENDED)  # as long as clients have to wait
        assert roles(job) == [names.ROLE_GATEWAY], "their requests wake nothing that somebody has suspended"
        job.kube.plugin("resume", job.name)

    with ThreadPoolExecutor(1) as pool:
        suspended: list[Future[None]] = []
        assert clients(url, lambda: suspended.append(pool.submit(suspend))) == undisturbed
        suspended[0].result()
    assert attempt(job) == before + 1
