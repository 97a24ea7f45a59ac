"""NetworkPolicies, enforced by a real engine: strangers reach nothing of a job, and its own gang meets and trains; clients reach the gateway of a
service at its port for them, from everywhere only with keys."""

from collections.abc import Iterator

import pytest

from e2e import service
from e2e.cluster import lifecycle
from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import Kube, wait_for
from e2e.reach import STRANGER, Targets, listening, reached, strangers
from rljob_api import names

pytestmark = pytest.mark.extra

ELSEWHERE = "rljob-e2e-elsewhere"
STEPS = 400
OPEN, KEYED = "open", "keyed"
"""Services without and with keys."""


@pytest.fixture
def elsewhere(empty_lab: Lab) -> Iterator[Kube]:
    """Another namespace with a stranger, as there is one in the tests' own."""
    if empty_lab.provider.name != "local":
        pytest.skip("the policy engine is started on nodes of the local cluster")
    with strangers(empty_lab.kube, ELSEWHERE, empty_lab.provider.trainer_image) as other:
        yield other


@pytest.fixture
def sources(lab: Lab, elsewhere: Kube) -> Iterator[list[tuple[Kube, str]]]:
    """The strangers, and a trainer of another job."""
    other = lab.start("neighbour", train={"steps": STEPS}, rollout={"replicas": 1})
    other.wait_for_state("Running")
    yield [(lab.kube, STRANGER), (elsewhere, STRANGER), (lab.kube, names.pod("neighbour", names.ROLE_TRAINER, 0))]
    other.delete()


def test_strangers_reach_nothing_of_a_job_whose_gang_meets_and_trains(
    lab: Lab, sources: list[tuple[Kube, str]]
) -> None:
    job = lab.start("walled", train={"steps": STEPS}, trainer={"nodes": 2})
    job.wait_for_step(2, timeout=400)
    found = listening(job)
    assert {names.ROLLOUT_PORT, names.master_port(1)} <= {port for _, port in found.values()}
    for kube, pod in sources:
        assert reached(kube, pod, found) == found.keys(), "without an engine nothing keeps anybody out"

    with lifecycle.policies_enforced():
        for kube, pod in sources:
            kept_out(kube, pod, found)
        lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_TRAINER, 1), "--grace-period=0", "--force")
        status = job.wait("the next attempt", lambda s: attempts(s)[0] == 2, 300)
        job.wait(
            "three more steps",
            lambda s: attempts(s)[0] == 2 and s.progress.step >= status.progress.step + 3,
            400,
        )
        again = listening(job)
        for kube, pod in sources:
            assert not reached(kube, pod, again), (
                f"{kube.namespace}/{pod}: the new pod and the new rendezvous are kept too"
            )
    job.delete()


@pytest.fixture
def services(empty_lab: Lab) -> Iterator[tuple[Job, Job]]:
    """One without keys, which trains, and one with keys, of which there is the gateway only."""
    empty_lab.kube.kubectl("create", "secret", "generic", KEYED, "--from-literal=alice=tml-alice")
    keys = {"name": "keys", "mountPath": "/keys", "readOnly": True, "source": {"secret": {"secretName": KEYED}}}
    free = service.start(empty_lab, OPEN)
    data = free.object()["spec"]["volumes"]
    keyed = service.start(empty_lab, KEYED, suspend=True, service={"keys": "/keys"}, volumes=[*data, keys])
    free.wait("its trainer and its server", lambda s: s.state == "Running" and s.rollout.ready == 1, 900)
    keyed.kube.kubectl("wait", "pod", gateway(KEYED), "--for=condition=Ready", "--timeout=300s", timeout=330)
    yield free, keyed
    for job in (free, keyed):
        job.delete()
    empty_lab.kube.kubectl("delete", "secret", KEYED)


def kept_out(kube: Kube, pod: str, found: Targets) -> None:
    wait_for(f"{kube.namespace}/{pod} to be kept out", lambda: not reached(kube, pod, found), 120)


def gateway(job: str) -> str:
    return names.pod(job, names.ROLE_GATEWAY, 0)


def test_clients_reach_a_gateway_at_its_port_for_them_and_from_elsewhere_only_with_keys(
    services: tuple[Job, Job], elsewhere: Kube
) -> None:
    free, kube = services[0], services[0].kube
    found = listening(*services)
    for job in services:
        address = kube.get("service", names.gang(job.name, names.ROLE_GATEWAY))["spec"]["clusterIP"]
        found[job.name] = (address, names.GATEWAY_PORT)
    ours = {name for name in found if name.startswith(f"{OPEN}-")}
    to_free, to_keyed = ({f"{gateway(name)}:{names.GATEWAY_PORT}", name} for name in (OPEN, KEYED))
    closed = {f"{gateway(name)}:{names.GATEWAY_WORK_PORT}" for name in (OPEN, KEYED)}
    roles = (names.ROLE_TRAINER, names.ROLE_ROLLOUT)
    assert to_free | to_keyed | closed <= found.keys(), "all of them take connections"
    silent = [role for role in roles if not any(name.startswith(names.pod(OPEN, role, 0)) for name in ours)]
    assert not silent, f"they take no connections: {silent}"
    assert reached(elsewhere, STRANGER, found) == found.keys(), "without an engine nothing keeps anybody out"

    with lifecycle.policies_enforced():
        wait_for("policies to hold", lambda: reached(elsewhere, STRANGER, found) == to_keyed, 120)
        assert reached(kube, STRANGER, found) == to_free | to_keyed
        own = {name for name in found if name.startswith(f"{KEYED}-")}
        assert reached(kube, gateway(KEYED), found) == to_free | to_keyed | own, "a pod of another job"
        for role in roles:
            pod = names.pod(OPEN, role, 0)
            assert reached(kube, pod, found) == ours | to_free | to_keyed, f"{role} of the job"
        assert free.status().state == "Running"
