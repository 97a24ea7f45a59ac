"""Two jobs that fit one at a time: the one of higher priority gets the node, and the other one continues later as if nothing had been."""

import pytest

from e2e.conftest import BASELINE, Lab
from e2e.job import Job
from e2e.kube import Object
from e2e.nodes import memory

SHARE = 35
"""Percent of a node's memory for each of two trainer pods: two jobs do not fit."""


def compete(lab: Lab, name: str, node: Object, **changes: object) -> Job:
    """Replay the baseline on this node."""
    selector = {"kubernetes.io/hostname": node["metadata"]["labels"]["kubernetes.io/hostname"]}
    template = {"resources": memory(node, SHARE), "nodeSelector": selector}
    return lab.start_replay(name, trainer={"template": template}, **changes)


@pytest.mark.extra
def test_a_job_that_is_preempted_saves_and_trains_on_as_if_it_had_never_waited(lab: Lab, baseline: Job) -> None:
    node = lab.kube.list("node", "!node-role.kubernetes.io/control-plane")[0]
    low = compete(lab, "preempted", node)
    low.wait_for_step(4)
    replayed = {"batches": {"replay": f"/data/runs/{BASELINE}/batches"}}
    high = compete(lab, "preemptor", node, train=replayed | {"steps": 3}, scheduling={"priority": 10})
    left = low.wait("its nodes are released", lambda s: s.preemption and s.preemption.released, 120)
    assert left.preemption and left.preemption.by == f"{lab.kube.namespace}/preemptor"
    assert left.checkpoint.latest and left.checkpoint.latest.step == left.progress.step, "it has saved its last step"
    high.wait_for_state("Succeeded", timeout=200)
    done = low.wait_for_state("Succeeded", timeout=400)
    assert (done.restarts.total, done.lost_steps, done.preemption) == (0, 0, None)
    assert "suspend" not in low.object()["spec"], "nobody has written it"
    assert done.attempt and done.attempt.number == 2
    assert lab.losses(low.name) == lab.losses(baseline.name), "every batch once, bit by bit"
