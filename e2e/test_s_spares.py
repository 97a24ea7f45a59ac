"""A node is lost under a job with a spare, and under the same job without one: how long until the next step."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import log_lines, wait_for
from e2e.nodes import home_and_away, memory
from rljob_api import names

pytestmark = pytest.mark.extra
LOSS_SECONDS = 5


@dataclass(frozen=True)
class Recovery:
    """When each phase had ended, in seconds after the moment at which the node counts as lost."""

    opened: float
    """The operator has opened the next attempt. In whole seconds."""
    begun: float
    """A pod has begun it."""
    built: float
    """Its ranks have met and built the model."""
    trained: float
    """They have loaded the checkpoint, which is small, and done a step."""

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name):.1f} s" for field in fields(self))


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


def lose(lab: Lab, job: Job, node: str) -> Recovery:
    """The job's node is switched off."""
    before = job.status()
    assert before.attempt and {m.node for m in before.attempt.members} == {node}
    lab.provider.stop_node(node, "power")
    number = before.attempt.number + 1
    job.wait("the next attempt", lambda s: attempts(s)[0] == number, 300)
    ready = next(c for c in lab.kube.get("node", node)["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "Unknown"
    lost = datetime.fromisoformat(ready["lastTransitionTime"]) + timedelta(seconds=LOSS_SECONDS)
    return wait_for("its first step", lambda: _recovery(job, lost, number), 300, describe=job.describe)


def _recovery(job: Job, lost: datetime, number: int) -> Recovery | None:
    """By the status and the log of the new member, which is more exact than its reports; None before its first step."""
    attempt = job.status().attempt
    assert attempt and attempt.number == number
    lines = log_lines(job.kube, attempt.members[0].pod, lost)
    begun = next((time for time, text in lines if f"attempt {number} begins" in text), None)
    later = [(time, text) for time, text in lines if begun and time > begun]
    built = next((time for time, text in later if "COMPUTES WITH" in text), None)
    trained = next((time for time, text in later if re.search(r"driver step \d+/", text)), None)
    if begun is None or built is None or trained is None:
        return None
    moments = (datetime.fromisoformat(attempt.started_at), begun, built, trained)
    return Recovery(*((moment - lost).total_seconds() for moment in moments))


def _log(lab: Lab, job: Job, ordinal: int) -> str:
    return lab.kube.kubectl("logs", names.pod(job.name, names.ROLE_TRAINER, ordinal))


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
    print(f"after the loss of a node, with a spare: {with_spare}; without: {without}")
    assert with_spare.begun < without.begun, "it needs no other pod"
    assert with_spare.trained - with_spare.begun < without.trained - without.begun, "its imports are ready"
