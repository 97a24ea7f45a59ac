"""A node is lost under a gang that fits nowhere else: the job gives its other node to a younger one, keeps its place before the youngest, and starts
again as a whole."""

import json
from collections.abc import Iterator

import pytest

from e2e.conftest import Lab
from e2e.job import Job
from e2e.nodes import home_and_away, memory
from rljob_api import reasons

pytestmark = pytest.mark.extra
STRANDED_SECONDS = 15
NAMES = ("stranded", "younger", "youngest")


@pytest.fixture
def nodes(lab: Lab) -> Iterator[tuple[str, str]]:
    with home_and_away(lab) as nodes:
        lab.kube.kubectl("uncordon", nodes[1])
        yield nodes
        lab.kube.kubectl("delete", "rljob", *NAMES, "--ignore-not-found", "--timeout=120s", timeout=150)


def start(lab: Lab, name: str, nodes: int) -> Job:
    """A job that needs this number of nodes for itself."""
    resources = memory(lab.kube.list("node", "!node-role.kubernetes.io/control-plane")[0], percent=60)
    return lab.start(
        name,
        of="sft",
        train={"steps": 100_000, "epochs": None},
        trainer={"nodes": nodes, "parallelism": {"tensor": nodes}, "template": {"resources": resources}},
        evaluation={"everySteps": 0},
        checkpoint={"path": f"/data/runs/{name}", "everySteps": 3},
        lifecycle={"nodeLossSeconds": 5, "strandedSeconds": STRANDED_SECONDS},
    )


def places(job: Job) -> set[str]:
    """Nodes of its pods that are not being deleted."""
    pods = [p for p in job.pods() if "deletionTimestamp" not in p["metadata"]]
    return {p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}


def why_stranded(job: Job) -> list[str]:
    selector = f"involvedObject.name={job.name},reason={reasons.STRANDED}"
    found = job.kube.kubectl("get", "events", "--field-selector", selector, "-o", "json")
    return [event["message"] for event in json.loads(found)["items"]]


def test_a_job_without_one_of_its_nodes_gives_up_the_other_and_starts_again_when_it_fits(
    lab: Lab, nodes: tuple[str, str]
) -> None:
    home, away = nodes
    old = start(lab, NAMES[0], nodes=2)
    old.wait_for_step(4, timeout=400)
    assert places(old) == {home, away}
    young = start(lab, NAMES[1], nodes=1)

    lab.provider.stop_node(away, "power")
    old.wait("the loss of its node", lambda s: s.stranded_since, 120)
    assert places(young) == set(), "the old one holds its node, in case that another comes"
    young.wait_for_step(2, timeout=300)
    assert places(young) == {home} and places(old) == set()
    (event,) = why_stranded(old)
    assert event.startswith("the job gives up the node of 1 pod and starts again with the whole gang: needs capacity")
    waiting = old.wait("its wait for capacity", lambda s: "waiting for capacity: " in s.message, 30)
    assert waiting.last_failure and waiting.last_failure.reason == reasons.NODE_LOST

    youngest = start(lab, NAMES[2], nodes=2)
    lab.provider.start_node(away)
    lab.kube.kubectl("wait", "node", away, "--for=condition=Ready", "--timeout=60s", timeout=90)
    young.delete()

    status = old.wait_for_attempt(2, 300)
    assert (places(old), places(youngest)) == ({home, away}, set()), "the older one comes first"
    assert (status.restarts.total, status.restarts.counted) == (1, 0)
    assert status.progress.started_from and status.progress.started_from >= 3
