"""A real agent-sandbox next to the local cluster: programs run in pods that waited in its pools, and none of its objects outlives the job."""

import time
from collections.abc import Iterator

import pytest

from e2e import agent_sandbox, boxed, stack
from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import wait_for
from e2e.local_plane import LocalPlane
from rljob_api import names

pytestmark = pytest.mark.extra


KINDS = ("sandboxclaims", "sandboxwarmpools", "sandboxtemplates", "sandboxes.agents.x-k8s.io")
SECONDS = 600
"""Many times what anything takes."""
WAITING_SECONDS, WAITING_STEPS = 20, 3
"""For which no step comes while there are no sandboxes: at least so long, and as long as so many steps take otherwise."""
REPORT_SECONDS = 10
"""Within which a step is in the job's status."""


@pytest.fixture(scope="module")
def plane(empty_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPlane]:
    """The controllers, and an operator that counts on them. Nothing of them stays."""
    provider = empty_lab.provider
    if provider.name != "local" or not provider.environment_image:
        pytest.skip(
            "the controllers run next to the control plane of the local cluster, and RLJOB_ENVIRONMENT_IMAGE is needed"
        )
    plane = LocalPlane(empty_lab.system, tmp_path_factory.mktemp("agent-sandbox"))
    try:
        agent_sandbox.start(plane)
        stack.install_operator(provider, "jobs.agentSandbox=true")
        yield plane
    finally:
        empty_lab.kube.kubectl("delete", "rljob", "--all", f"--timeout={SECONDS}s", timeout=SECONDS)
        plane.stop()
        remove(empty_lab)
        stack.install_operator(provider)


def remove(lab: Lab) -> None:
    for kind in ("crd", "clusterrole", "clusterrolebinding"):
        found = lab.kube.kubectl("get", kind, "-o", "name").split()
        if ours := [name for name in found if "agents.x-k8s.io" in name or "/agent-sandbox-" in name]:
            lab.kube.kubectl("delete", *ours, "--timeout=60s")
    lab.kube.kubectl("delete", "namespace", agent_sandbox.NAMESPACE, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def job(empty_lab: Lab, plane: LocalPlane) -> Job:
    return boxed.start(empty_lab, "claimed", python=4)


def by_claim(job: Job) -> dict[str | None, set[str]]:
    """Uids of its sandboxes' pods by the number of their claim; None: of those that wait."""
    found = dict[str | None, set[str]]()
    for meta in (pod["metadata"] for pod in job.pods(names.sandbox_role(0))):
        found.setdefault(meta.get("annotations", {}).get(names.ANNOTATION_CLAIM), set()).add(meta["uid"])
    return found


def claimed(job: Job) -> set[str]:
    return {uid for number, own in by_claim(job).items() if number is not None for uid in own}


def assert_kept_in(lab: Lab, job: Job) -> None:
    """NetworkPolicies are the job's alone, which select its pods by their labels, and no pod has a token."""
    policies = lab.kube.list("networkpolicy")
    assert {policy["metadata"]["ownerReferences"][0]["kind"] for policy in policies} == {"RLJob"}
    for pod in job.pods(names.sandbox_role(0)):
        assert pod["metadata"]["labels"][names.LABEL_SANDBOX] == "true"
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_programs_run_in_pods_of_the_pool_which_are_given_back_and_replaced(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=SECONDS)
    step = job.status().progress.step
    waited = wait_for("one that waits", lambda: by_claim(job).get(None), SECONDS)
    before, used = claimed(job), set[str]()

    def all_used() -> bool:
        used.update(claimed(job))
        return job.status().progress.step >= step + 3 and waited <= used

    wait_for("three more steps", all_used, SECONDS, describe=job.describe)
    assert not before & claimed(job), "24 trajectories have used all of them"
    assert_kept_in(empty_lab, job)
    boxed.assert_programs_ran(empty_lab, job)
    status = job.status()
    assert attempts(status) == (1, 0)


def test_while_its_controllers_are_away_trajectories_wait_and_none_fails(
    empty_lab: Lab, plane: LocalPlane, job: Job
) -> None:
    """Pods that were used go all the same; there are no others."""
    job.wait_for_step(2, timeout=SECONDS)
    began = time.monotonic()
    job.wait_for_step(job.status().progress.step + 2, timeout=SECONDS)
    usual = (time.monotonic() - began) / 2
    plane.stop()
    wait_for("all to be used", lambda: not claimed(job), SECONDS)
    time.sleep(2 * usual + REPORT_SECONDS)  # what the last of them have computed becomes a step, and is reported
    step = job.status().progress.step
    time.sleep(max(WAITING_SECONDS, WAITING_STEPS * usual))  # nothing that could be waited for comes
    assert job.status().progress.step == step, "without sandboxes there is nothing to train on"
    agent_sandbox.run(plane)
    job.wait_for_step(step + 2, timeout=SECONDS)
    boxed.assert_programs_ran(empty_lab, job)
    status = job.status()
    assert attempts(status) == (1, 0)


def test_nothing_is_left_when_the_job_is_deleted(empty_lab: Lab, job: Job) -> None:
    job.delete()

    def left() -> str:
        return empty_lab.kube.kubectl("get", ",".join(KINDS), "-o", "name")

    wait_for("nothing to be left", lambda: not left() and not job.pods(), SECONDS)
