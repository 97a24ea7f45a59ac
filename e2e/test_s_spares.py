"""A node is lost under a job with a spare, and under the same job without one: how long until the next step."""

import json
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import wait_for
from e2e.nodes import home_and_away, memory
from rljob_api import names
from rljob_api.protocol import Report
from rljob_api.status import JobStatus

pytestmark = pytest.mark.extra
LOSS_SECONDS = 5
GOAL = 15.0
"""Seconds from the moment at which a node counts as lost to the end of the next attempt's first step. The checkpoint is small."""


@pytest.fixture(scope="module")
def nodes(lab: Lab) -> Iterator[tuple[str, str]]:
    with home_and_away(lab) as nodes:
        yield nodes


def start(lab: Lab, nodes: tuple[str, str], name: str, spares: int) -> Job:
    """One trainer pod on the second node. Another one fits only onto the first, and may go there from now on."""
    home, away = nodes
    resources = memory(lab.kube.get("node", away), percent=60)
    lab.kube.kubectl("cordon", home)
    lab.kube.kubectl("uncordon", away)
    job = lab.start(
        name,
        of="sft",
        train={"steps": 100_000, "epochs": None},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}, "template": {"resources": resources}},
        evaluation={"everySteps": 0},
        checkpoint={"path": f"/data/runs/{name}", "everySteps": 3},
        lifecycle={"nodeLossSeconds": LOSS_SECONDS},
        scheduling={"spareNodes": spares},
    )
    job.wait_for_step(4, timeout=400)
    lab.kube.kubectl("uncordon", home)
    return job


def lose(lab: Lab, job: Job, node: str) -> float:
    """Seconds between the loss of the job's node and the end of the next attempt's first step."""
    before = job.status()
    assert before.attempt and {m.node for m in before.attempt.members} == {node}
    lab.provider.stop_node(node, "power")
    done = wait_for("a step of the next attempt", lambda: _stepped(lab, job, before), 300, describe=job.describe)
    ready = next(c for c in lab.kube.get("node", node)["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "Unknown"
    return done - datetime.fromisoformat(ready["lastTransitionTime"]).timestamp() - LOSS_SECONDS


def _log(lab: Lab, job: Job, ordinal: int) -> str:
    return lab.kube.kubectl("logs", names.pod(job.name, names.ROLE_TRAINER, ordinal))


def _stepped(lab: Lab, job: Job, before: JobStatus) -> float | None:
    """When a pod first says that the attempt after `before` has done a step. The status follows later."""
    assert before.attempt
    for pod in job.pods(names.ROLE_TRAINER):
        text = lab.report(pod["metadata"]["name"]).get(names.REPORT_KEY)
        if text is None:
            continue
        report = Report.model_validate(json.loads(text))
        progress = report.progress
        current = report.attempt == before.attempt.number + 1 and progress and progress.started_from
        if current and progress and progress.step > (progress.started_from or 0):
            return time.time()
    return None


def test_the_step_after_the_loss_of_a_node_comes_sooner_with_a_spare(lab: Lab, nodes: tuple[str, str]) -> None:
    home, away = nodes
    spared = start(lab, nodes, "spared", spares=1)
    spared.wait("a warm spare", lambda s: s.spares.warm == 1, 120)
    wait_for(
        "model files read ahead", lambda: "model files ahead" in _log(lab, spared, 1), 60, describe=spared.describe
    )
    with_spare = lose(lab, spared, away)
    status = spared.status()
    assert status.attempt and [m.node for m in status.attempt.members] == [home]
    assert status.restarts.counted == 0 and status.spares.standing_in
    assert "stands in" in lab.kube.plugin("status", spared.name)
    lab.provider.start_node(away)
    spared.wait("another warm spare, on the node that is back", lambda s: s.spares.warm == 1, 300)
    spared.delete()

    bare = start(lab, nodes, "bare", spares=0)
    without = lose(lab, bare, away)
    bare.delete()
    print(f"seconds from the loss of a node to the next step: {with_spare:.1f} with a spare, {without:.1f} without")
    assert with_spare < GOAL
    assert with_spare < without
