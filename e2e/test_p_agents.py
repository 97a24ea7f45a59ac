"""The calculator's agent on the cluster, in pods of its own: it learns to call its tool while a process and a pod of it are killed."""

import pytest

from e2e.conftest import Lab
from e2e.job import EXAMPLES, Job, attempts
from e2e.kube import wait_for
from e2e.prepare import run_preparation
from rljob_api import names

pytestmark = pytest.mark.extra

STEPS = 20
WORKERS = {"replicas": 2, "processes": 1, "template": {"resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}}}
KILL_ONE_AT_WORK = """
import psutil
agents = [p for p in psutil.process_iter() if "rljob_trainer.agents.worker" in p.cmdline()]
while not (busy := [p for p in agents if p.cpu_percent(0.2) > 0]):
    pass
busy[0].kill()
"""


@pytest.fixture(scope="module")
def job(empty_lab: Lab) -> Job:
    """As its README says, with the agent in pods."""
    empty_lab.kube.kubectl("create", "configmap", "calculator", f"--from-file={EXAMPLES / 'calculator'}")
    run_preparation(empty_lab.kube, empty_lab.provider, "calculator")
    changes = {"train": {"steps": STEPS}, "evaluation": {"everySteps": STEPS}}
    return empty_lab.start("calculator", of="calculator", rollout={"agent": {"workers": WORKERS}}, **changes)


def test_neither_a_killed_process_nor_a_lost_pod_costs_a_trajectory_and_the_job_learns_on(
    empty_lab: Lab, job: Job
) -> None:
    job.wait_for_step(2, timeout=900)
    worker, lost = names.pod(job.name, names.ROLE_WORKER, 0), job.uid(names.ROLE_WORKER, 1)
    empty_lab.kube.execute(worker, "python", "-c", KILL_ONE_AT_WORK)
    wait_for("the failure in the status", lambda: _is_named(job, worker), 300)
    empty_lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_WORKER, 1), "--grace-period=0", "--force")
    wait_for("another pod", lambda: job.uid(names.ROLE_WORKER, 1) not in ("", lost), 300)
    step = job.status().progress.step
    job.wait("both pods", lambda s: s.workers.text == "2/2" and s.progress.step > step, 600)
    status = job.wait_for_state("Succeeded", timeout=1800)
    assert attempts(status) == (1, 0)
    assert not any(empty_lab.series(job.name, "agent/failed").values()), "all of them began anew"
    assert status.progress.evaluation["last"] > status.progress.evaluation["first"] + 0.3
    assert empty_lab.series(job.name, "agent/turns")[STEPS] > 2


def _is_named(job: Job, pod: str) -> bool:
    found = job.status().last_rollout_failure
    return found is not None and found.pod == pod and "SIGKILL" in found.failure.exception


def test_samples_say_what_the_agent_wrote(empty_lab: Lab, job: Job) -> None:
    job.wait_for_state("Succeeded", timeout=900)
    printed = empty_lab.kube.plugin("samples", job.name, "--count", "16")
    assert f"STEP {STEPS}" in printed and "environment" in printed and "add(" in printed


def test_pods_come_when_trajectories_wait_and_go_while_the_policy_is_trained(empty_lab: Lab, job: Job) -> None:
    job.wait_for_state("Succeeded", timeout=900)
    scaling = {"minReplicas": 1, "callsPerReplica": 8, "downSeconds": 1}
    scaled = empty_lab.start(
        "scaled",
        of="calculator",
        rollout={"agent": {"workers": WORKERS | {"autoscaling": scaling}}},
        train={"steps": 4, "epochsPerStep": 8},
        evaluation={"everySteps": 4},
    )
    scaled.wait("a second pod", lambda s: s.workers.text == "2/2", 900)
    first = scaled.uid(names.ROLE_WORKER, 0)
    scaled.wait("one pod alone, since nothing is generated", lambda s: s.worker_replicas == {"worker": 1}, 900)
    wait_for("its end", lambda: not scaled.uid(names.ROLE_WORKER, 1), 120)
    scaled.wait("the second pod again", lambda s: s.worker_replicas == {"worker": 2}, 900)
    assert scaled.uid(names.ROLE_WORKER, 0) == first, "the first one has stayed"
    status = scaled.wait_for_state("Succeeded", timeout=1800)
    assert attempts(status) == (1, 0)
    assert not any(empty_lab.series("scaled", "agent/failed").values())
