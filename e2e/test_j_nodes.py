"""A job is driven off its node: by a power cut, by `kubectl drain`, by a cordon or a condition alone, by a cut cable behind which it lives on, and by
ranks that are killed there twice. No step counts twice."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.conftest import Lab
from e2e.job import Job
from e2e.kube import wait_for
from e2e.nodes import drain, home_and_away
from e2e.prepare import WORKBENCH, read_file
from e2e.test_b_trainer_failure import kill_rank_0
from e2e.test_c_rollout_failure import open_weights
from rljob_api import names, reasons
from rljob_api.status import JobStatus

NAME = "nodes"
LOSS_SECONDS = 5


@pytest.fixture(scope="module")
def nodes(lab: Lab) -> Iterator[tuple[str, str]]:
    """Where the tests' own pods and the operator are, and the one that is the job's."""
    with home_and_away(lab) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def job(lab: Lab, nodes: tuple[str, str]) -> Iterator[Job]:
    """On the second node, and free to go to the first from then on."""
    home, away = nodes
    lab.kube.kubectl("cordon", home)
    lab.kube.kubectl("uncordon", away)
    job = lab.start(
        NAME,
        train={"steps": 100_000},
        rollout={"replicas": 1},
        evaluation={"everySteps": 0},
        checkpoint={"path": f"/data/runs/{NAME}", "everySteps": 3},
        lifecycle={"nodeLossSeconds": LOSS_SECONDS},
    )
    job.wait_for_step(4, timeout=400)
    lab.kube.kubectl("uncordon", home)
    yield job
    job.delete()


def places(job: Job, status: JobStatus) -> set[str]:
    """The nodes of the attempt's members."""
    assert status.attempt
    return {job.kube.get("pod", m.pod)["spec"]["nodeName"] for m in status.attempt.members}


def wait_for_next_attempt(job: Job, before: JobStatus) -> JobStatus:
    """Until the attempt after `before` has trained for some steps. It cost a restart that does not count."""
    assert before.attempt
    status = job.wait_for_attempt(before.attempt.number + 1, 300, steps=4)
    assert (status.restarts.total, status.restarts.counted) == (before.restarts.total + 1, 0)
    assert status.progress.started_from, "it began from a checkpoint"
    return status


def wait_for_failure(job: Job, attempt: int) -> None:
    """Until this attempt is the last one that failed."""

    def failed(status: JobStatus) -> bool:
        return status.last_failure is not None and status.last_failure.attempt == attempt

    job.wait(f"the end of attempt {attempt}", failed, 120)


def uids(job: Job) -> set[str]:
    return {p["metadata"]["uid"] for p in job.pods()}


def test_a_job_goes_on_without_the_node_that_lost_its_power(lab: Lab, job: Job, nodes: tuple[str, str]) -> None:
    home, away = nodes
    old, before = uids(job), job.status()
    assert places(job, before) == {away}
    lab.provider.stop_node(away, "power")
    status = wait_for_next_attempt(job, before)
    assert places(job, status) == {home}
    assert status.last_failure and status.last_failure.reason == reasons.NODE_LOST

    lab.provider.start_node(away)
    wait_for("the old pods' end", lambda: not uids(job) & old, 300, describe=job.describe)
    assert job.wait_for_step(job.status().progress.step + 3).attempt == status.attempt


def test_a_drained_node_costs_no_step(lab: Lab, job: Job, nodes: tuple[str, str]) -> None:
    home, away = nodes
    before = job.status()
    drain(lab, home, names.selector(job.name))
    status = wait_for_next_attempt(job, before)
    lab.kube.kubectl("uncordon", home)
    assert places(job, status) == {away}
    assert status.lost_steps == before.lost_steps


def leave(job: Job, before: JobStatus, there: str, why: str) -> JobStatus:
    """The job has gone to `there` at the end of a step, because its node's owner wanted it to."""
    status = wait_for_next_attempt(job, before)
    assert places(job, status) == {there}
    assert status.lost_steps == before.lost_steps
    assert [(n.state, n.quarantine) for n in status.nodes if n.quarantine] == [("excluded", why)]
    assert status.last_failure == before.last_failure, "it has not failed"
    return status


def test_a_cordoned_node_is_left_at_the_end_of_a_step(lab: Lab, job: Job, nodes: tuple[str, str]) -> None:
    home, away = nodes
    before = job.status()
    assert places(job, before) == {away}
    lab.kube.kubectl("cordon", away)
    try:
        leave(job, before, home, "cordoned")
    finally:
        lab.kube.kubectl("uncordon", away)


def test_a_condition_that_says_a_gpu_is_broken_is_as_good_as_a_cordon(
    lab: Lab, job: Job, nodes: tuple[str, str]
) -> None:
    home, away = nodes
    before = job.status()
    assert places(job, before) == {home}
    set_condition(lab, home, "GpuXidError", "True")
    try:
        status = leave(job, before, away, "condition GpuXidError")
        assert "EXCLUDED" in lab.kube.plugin("status", NAME)
    finally:
        set_condition(lab, home, "GpuXidError", "False")
    assert job.wait_for_step(status.progress.step + 3).attempt == status.attempt


def set_condition(lab: Lab, node: str, kind: str, status: str) -> None:
    """As a health monitor does."""
    patch = {"status": {"conditions": [{"type": kind, "status": status, "reason": "e2e", "message": "set by a test"}]}}
    lab.kube.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", json.dumps(patch))


def test_an_attempt_that_lives_on_behind_a_cut_cable_is_fenced_out(lab: Lab, job: Job, nodes: tuple[str, str]) -> None:
    """It reaches its own rollout and the volume, not the API server, and does not know that another attempt has begun."""
    home, away = nodes
    old, before = uids(job), job.status()
    assert before.attempt and places(job, before) == {away}
    lab.provider.stop_node(away, "unplug")
    status = wait_for_next_attempt(job, before)
    assert status.attempt and places(job, status) == {home}
    last, now = before.attempt.number, status.attempt.number
    refused = f"now belongs to attempt {now} of job {job.object()['metadata']['uid']}; this is attempt {last}"
    wait_for("its end at a checkpoint", lambda: refused in logs_of_attempt(lab, last), 300, describe=job.describe)
    (rollout,) = [p for p in job.pods(names.ROLE_ROLLOUT) if p["spec"].get("nodeName") == home]
    assert open_weights(lab, job, rollout, attempt=last) == 409

    lab.provider.start_node(away)
    wait_for("the old pods' end", lambda: not uids(job) & old, 300, describe=job.describe)
    status = job.wait_for_step(job.status().progress.step + 3)
    assert status.attempt and status.attempt.number == now
    assert {c.attempt for c in status.checkpoint.kept if c.step > (status.progress.started_from or 0)} == {now}
    text = read_file(lab.kube, f"/data/runs/{NAME}/metrics.jsonl")
    lines = text.rpartition("\n")[0].splitlines()  # the last one may be under way
    steps = [line["step"] for line in map(json.loads, lines) if "train/loss" in line]
    assert steps == list(range(1, len(steps) + 1)), "the old attempt wrote into the new one's metrics"


def logs_of_attempt(lab: Lab, number: int) -> str:
    """Of its ranks and driver, from the volume."""
    return lab.kube.execute(WORKBENCH, "sh", "-c", f"cat {names.log_dir(Path(f'/data/runs/{NAME}'), number)}/*")


@pytest.mark.extra
def test_a_node_on_which_ranks_are_killed_twice_is_avoided(lab: Lab, job: Job, nodes: tuple[str, str]) -> None:
    home, away = nodes
    job.delete()  # there is no capacity for two
    lab.kube.kubectl("cordon", home)
    bad = lab.start(
        "bad-node",
        train={"steps": 100_000},
        rollout={"replicas": 1},
        evaluation={"everySteps": 0},
        checkpoint={"path": "/data/runs/bad-node", "everySteps": 3},
        lifecycle={"backoffSeconds": 1},
    )
    try:
        bad.wait_for_step(1, timeout=400)
        lab.kube.kubectl("uncordon", home)
        assert places(bad, bad.status()) == {away}
        for attempt in (1, 2):
            kill_rank_0(lab, bad, attempt=attempt, step=1)
            wait_for_failure(bad, attempt)
        status = bad.wait("attempt 3", lambda s: s.progress.attempt == 3 and s.state == "Running", 300)
        assert places(bad, status) == {home}
        assert [(n.node, n.state, len(n.failures)) for n in status.nodes] == [(away, "excluded", 2)]
    finally:
        bad.delete()
        lab.kube.kubectl("uncordon", home)
