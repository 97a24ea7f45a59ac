"""A tool asks for a node by an object of a kind of its own: a job leaves the node at the end of a step, by the rights that the chart gives."""

from collections.abc import Iterator

import pytest

from e2e.conftest import Lab
from e2e.kube import Object
from e2e.nodes import home_and_away

pytestmark = pytest.mark.extra

NAME, GROUP, SECONDS = "requested", "nvsentinel.nvidia.com", 400
KIND: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"drainrequests.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "drainrequests", "singular": "drainrequest", "kind": "DrainRequest"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
def nodes(empty_lab: Lab) -> Iterator[tuple[str, str]]:
    with home_and_away(empty_lab) as nodes:
        yield nodes


@pytest.fixture
def kind(empty_lab: Lab) -> Iterator[None]:
    """It is installed while the operator runs, which looks for it every minute."""
    empty_lab.kube.apply(KIND)
    empty_lab.kube.kubectl("wait", "crd", KIND["metadata"]["name"], "--for=condition=Established", "--timeout=30s")
    yield
    empty_lab.kube.kubectl("delete", "crd", KIND["metadata"]["name"], "--timeout=60s")


def test_a_node_for_which_there_is_a_drain_request_is_left_at_the_end_of_a_step(
    empty_lab: Lab, nodes: tuple[str, str], kind: None
) -> None:
    home, away = nodes
    empty_lab.kube.kubectl("cordon", home)
    empty_lab.kube.kubectl("uncordon", away)
    job = empty_lab.start_untrained(
        NAME,
        of="sft",
        train={"steps": 100_000, "epochs": None},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}},
        checkpoint={"path": f"/data/runs/{NAME}", "everySteps": 1000},
    )
    before = job.wait_for_step(3, timeout=SECONDS)
    assert before.attempt and {m.node for m in before.attempt.members} == {away}
    empty_lab.kube.kubectl("uncordon", home)
    request: Object = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "DrainRequest",
        "metadata": {"name": "drain-away"},
        "spec": {"nodeName": away, "checkName": "SysLogsXIDError"},
    }
    empty_lab.kube.apply(request)

    status = job.wait_for_attempt(2, SECONDS)
    assert status.attempt and {m.node for m in status.attempt.members} == {home}
    assert (status.lost_steps, status.restarts.counted, status.last_failure) == (0, 0, None)
    assert [(n.node, n.state, n.quarantine) for n in status.nodes] == [(away, "excluded", "drainrequests drain-away")]
    job.delete()
