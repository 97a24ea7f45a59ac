"""Programs that the policy has written are run and scored in sandboxes, from which nothing is reached, and of which none is used twice."""

import json

import pytest

from e2e import boxed
from e2e.cluster import lifecycle
from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import wait_for
from e2e.reach import Targets, reached
from rljob_api import names

pytestmark = pytest.mark.extra

USED, IDLE = names.sandbox_role(0), names.sandbox_role(1)


def others(lab: Lab, job: Job) -> Targets:
    """What a program could connect to: the API server, the job's server, and another sandbox."""
    service = lab.kube.run("kubectl", "get", "service", "kubernetes", "-n", "default", "-o", "json")
    rollout, neighbour = (job.pod(role, i)["status"]["podIP"] for role, i in (("rollout", 0), (IDLE, 1)))
    api = json.loads(service)["spec"]
    return {
        "API server": (api["clusterIP"], api["ports"][0]["port"]),
        "rollout": (rollout, names.ROLLOUT_PORT),
        "sandbox": (neighbour, names.ROLLOUT_PORT),
    }


def reached_by_a_sandbox(lab: Lab, job: Job) -> set[str]:
    """Of these, from a sandbox that nobody claims, so that it stays."""
    return reached(lab.kube, names.pod(job.name, IDLE, 0), others(lab, job))


@pytest.fixture(scope="module")
def job(empty_lab: Lab) -> Job:
    if empty_lab.provider.name != "local" or not empty_lab.provider.environment_image:
        pytest.skip("the policy engine is started on nodes of the local cluster, and RLJOB_ENVIRONMENT_IMAGE is needed")
    return boxed.start(empty_lab, "boxed", python=4, idle=2)


def test_programs_are_scored_and_every_trajectory_has_a_sandbox_of_its_own(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=900)
    before = boxed.uids(job)
    step = job.status().progress.step
    job.wait_for_step(step + 3, timeout=600)
    after = boxed.uids(job)
    assert len(before) == 4 and not {*before.values()} & {*after.values()}, "24 trajectories have used all of them"
    boxed.assert_programs_ran(empty_lab, job)
    pod = job.pod(USED, 0)["spec"]
    mounted = [m["mountPath"] for c in (*pod["containers"], *pod["initContainers"]) for m in c["volumeMounts"]]
    assert "/var/run/secrets/kubernetes.io/serviceaccount" not in mounted


def test_a_program_reaches_neither_the_api_server_nor_another_pod_and_the_job_goes_on(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=900)
    assert len(reached_by_a_sandbox(empty_lab, job)) == 3, "without an engine nothing keeps it in"
    with lifecycle.policies_enforced():
        wait_for("everything to be out of reach", lambda: not reached_by_a_sandbox(empty_lab, job), 180)
        step = job.status().progress.step
        job.wait_for_step(step + 2, timeout=600)
    status = job.status()
    assert attempts(status) == (1, 0)
    job.delete()
