"""NetworkPolicies, enforced by a real engine: strangers reach nothing of a job, and its own gang meets and trains."""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster import lifecycle
from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import Kube, Object, wait_for
from rljob_api import names

pytestmark = pytest.mark.extra

ELSEWHERE = "rljob-e2e-elsewhere"
STEPS = 400

LISTENING = """
import json, pathlib
rows = [row.split() for file in ("tcp", "tcp6") for row in pathlib.Path("/proc/net", file).read_text().splitlines()[1:]]
ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and not row[1].startswith("0100007F")}
print(json.dumps(sorted(ports)))
"""
"""Ports on which a pod takes connections from others."""

REACH = """
import concurrent.futures, json, socket
def reached(target):
    try:
        socket.create_connection(target, timeout=3).close()
    except OSError:
        return False
    return True
targets = {targets}
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    print(json.dumps([t for t, yes in zip(targets, pool.map(reached, targets)) if yes]))
"""


def python(kube: Kube, pod: str, program: str) -> object:
    return json.loads(kube.execute(pod, "python", "-c", program, timeout=120).splitlines()[-1])


def stranger(kube: Kube, image: str) -> None:
    """A pod without labels that does nothing."""
    security = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 65532}
    container = {"name": "c", "image": image, "command": ["sleep", "infinity"], "securityContext": security}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": spec})
    kube.kubectl("wait", "pod", "stranger", "--for=condition=Ready", "--timeout=120s", timeout=150)


@pytest.fixture
def strangers(lab: Lab) -> Iterator[list[tuple[Kube, str]]]:
    """An unlabelled pod of the namespace, one of another namespace, and a trainer of another job."""
    if lab.provider.name != "local":
        pytest.skip("the policy engine is started on nodes of the local cluster")
    elsewhere = Kube(lab.kube.kubeconfig, ELSEWHERE, lab.kube.path)
    elsewhere.kubectl("create", "namespace", ELSEWHERE)
    for kube in (lab.kube, elsewhere):
        stranger(kube, lab.provider.trainer_image)
    other = lab.start("neighbour", train={"steps": STEPS}, rollout={"replicas": 1})
    other.wait_for_state("Running")
    yield [(lab.kube, "stranger"), (elsewhere, "stranger"), (lab.kube, names.pod("neighbour", names.ROLE_TRAINER, 0))]
    other.delete()
    lab.kube.kubectl("delete", "pod", "stranger", "--wait=false")
    elsewhere.kubectl("delete", "namespace", ELSEWHERE, "--wait=false")


def targets(job: Job) -> list[tuple[str, int]]:
    """Every port that the job's pods listen on: rollout servers, rendezvous, gloo."""

    def of(pod: Object) -> list[tuple[str, int]]:
        ports = python(job.kube, pod["metadata"]["name"], LISTENING)
        assert isinstance(ports, list)
        return [(pod["status"]["podIP"], port) for port in ports]

    return [target for pod in job.pods() for target in of(pod)]


def test_strangers_reach_nothing_of_a_job_whose_gang_meets_and_trains(
    lab: Lab, strangers: list[tuple[Kube, str]]
) -> None:
    job = lab.start("walled", train={"steps": STEPS}, trainer={"nodes": 2})
    job.wait_for_step(2, timeout=400)
    found = targets(job)
    assert {names.ROLLOUT_PORT, names.master_port(1)} <= {port for _, port in found}
    program = REACH.replace("{targets}", json.dumps(found))
    for kube, pod in strangers:
        assert len(python(kube, pod, program)) == len(found), "without an engine nothing keeps anybody out"

    with lifecycle.policies_enforced():
        for kube, pod in strangers:
            wait_for(f"{kube.namespace}/{pod} to be kept out", lambda k=kube, p=pod: python(k, p, program) == [], 120)
        lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_TRAINER, 1), "--grace-period=0", "--force")
        status = job.wait("the next attempt", lambda s: bool(s.attempt and s.attempt.number == 2), 300)
        job.wait(
            "three more steps",
            lambda s: bool(s.attempt and s.attempt.number == 2) and s.progress.step >= status.progress.step + 3,
            400,
        )
        again = REACH.replace("{targets}", json.dumps(targets(job)))
        for kube, pod in strangers:
            assert python(kube, pod, again) == [], (
                f"{kube.namespace}/{pod}: the new pod and the new rendezvous are kept too"
            )
    job.delete()
