"""A loop of a client's own trains adapters, or all parameters, on the cluster by the official SDK, while pods of the service are killed, and while it
is suspended."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from e2e import service
from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import wait_for
from rljob_api import names

pytestmark = pytest.mark.extra

STEPS, SECONDS = 12, 2.0


@dataclass(frozen=True)
class Offer:
    """What a service trains."""

    service: dict[str, int]
    """Of its section."""
    rank: int
    """That the script asks for."""


OFFERS = {"adapters": Offer({}, 4), "parameters": Offer({"maxRank": 0, "maxModels": 1}, 0)}


@pytest.fixture(scope="module", params=OFFERS)
def offer(request: pytest.FixtureRequest) -> Offer:
    return OFFERS[request.param]


@pytest.fixture(scope="module")
def job(empty_lab: Lab, offer: Offer) -> Iterator[Job]:
    job = service.start(empty_lab, f"service-{offer.rank}", service=offer.service)
    job.wait_for_state("Running", timeout=900)
    yield job
    job.delete()


@pytest.fixture(scope="module")
def url(job: Job) -> Iterator[str]:
    with service.reached(job) as url:
        yield url


def script(url: str, offer: Offer, events: Mapping[int, Callable[[], object]]) -> dict[str, Any]:
    return service.script(url, STEPS, SECONDS, offer.rank, events)


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
    def kill(role: str) -> Callable[[], object]:
        pod = names.pod(job.name, role, 0)
        return lambda: job.kube.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")

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
