"""GitOps before a real API server: server-side apply, the first status, and `kubectl scale`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.specs import raw_spec
from apiserver.world import administrator
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane
from e2e.kube import CommandFailed, Kube
from gitops.kstatus import compute
from rljob_api.status import JobStatus
from simulator.objects import job_object

pytestmark = pytest.mark.slow
NAMESPACE = "gitops"


@pytest.fixture(scope="module")
def kube(plane: ControlPlane) -> Iterator[Kube]:
    found = Kube(plane.kubeconfig, NAMESPACE, str(BIN))
    found.kubectl("create", "namespace", NAMESPACE)
    yield found


def sync(kube: Kube, job: dict[str, Any]) -> str:
    """As Argo CD and Flux do; a field that another manager owns would be a conflict."""
    return kube.kubectl("apply", "--server-side", "--field-manager=gitops", "-f", "-", stdin=json.dumps(job))


async def test_what_git_applies_stays_as_it_is_while_the_operator_writes_the_status(
    plane: ControlPlane, kube: Kube
) -> None:
    job = job_object("demo", raw_spec(), NAMESPACE)
    del job["metadata"]["generation"], job["metadata"]["annotations"]
    sync(kube, job)
    fresh = kube.get("rljob", "demo")
    assert fresh["status"] == {"observedGeneration": -1}
    assert compute(fresh) == "InProgress"
    api = administrator(plane)
    try:
        status = JobStatus(observed_generation=1, state="Pending")
        await api.replace(fresh | {"status": status.dump()}, "status")
    finally:
        await api.close()
    sync(kube, job)
    after = kube.get("rljob", "demo")
    assert after["metadata"]["generation"] == 1
    assert after["status"]["observedGeneration"] == 1
    kube.kubectl("diff", "--server-side", "--field-manager=gitops", "-f", "-", stdin=json.dumps(job))


def test_kubectl_scales_rollouts(kube: Kube) -> None:
    sync(kube, job_object("wide", raw_spec(), NAMESPACE))
    kube.kubectl("scale", "rljob/wide", "--replicas=4")
    job = kube.get("rljob", "wide")
    assert job["spec"]["rollout"]["replicas"] == 4
    assert job["metadata"]["generation"] == 2


def test_a_scale_that_the_spec_forbids_is_refused_by_the_api_server(kube: Kube) -> None:
    sync(kube, job_object("narrow", raw_spec(), NAMESPACE))
    with pytest.raises(CommandFailed, match="nothing would generate"):
        kube.kubectl("scale", "rljob/narrow", "--replicas=0")


def test_a_job_without_rollouts_is_not_scaled_and_says_why(kube: Kube) -> None:
    sync(kube, job_object("tuned", raw_spec(task="sft"), NAMESPACE))
    with pytest.raises(CommandFailed, match="spec.rollout.replicas: only the tasks rl and service have rollouts"):
        kube.kubectl("scale", "rljob/tuned", "--replicas=4")
    assert kube.get("rljob", "tuned")["spec"]["rollout"]["replicas"] == 1
