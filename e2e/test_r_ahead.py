"""Generation two steps ahead while rollouts come and go: by scaling, by a kill, with their node. The attempt continues, and no sample is lost."""

import json
from collections.abc import Iterator

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import wait_for
from e2e.nodes import home_and_away
from e2e.test_c_rollout_failure import rollout_steps
from rljob_api import names
from rljob_api.status import JobStatus

pytestmark = pytest.mark.extra
NAME, STALENESS = "ahead", 2
FULL = "e2e/full=:NoSchedule"


@pytest.fixture(scope="module")
def nodes(empty_lab: Lab) -> Iterator[tuple[str, str]]:
    """Where the trainers are, and where rollouts go that come later."""
    with home_and_away(empty_lab) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def job(empty_lab: Lab, nodes: tuple[str, str]) -> Iterator[Job]:
    home, away = nodes
    kubectl = empty_lab.kube.kubectl
    job = empty_lab.start_untrained(
        NAME,
        algorithm={"rolloutCorrection": {"importanceSampling": "token"}},
        train={"steps": 100_000, "staleness": STALENESS, "batches": {"record": True}},
        rollout={"replicas": 1, "interrupt": "continue"},
        checkpoint={"path": f"/data/runs/{NAME}", "everySteps": 10},
        lifecycle={"nodeLossSeconds": 5},
    )
    job.wait_for_step(3, timeout=900)
    kubectl("taint", "node", home, FULL)  # a job leaves a node that is cordoned
    kubectl("uncordon", away)
    yield job
    job.delete()
    kubectl("taint", "node", home, FULL, "--overwrite")
    kubectl("taint", "node", home, f"{FULL}-")


def current(empty_lab: Lab, job: Job, count: int) -> JobStatus:
    """Once so many rollouts are ready and serve a policy."""

    def serve(status: JobStatus) -> bool:
        policies = rollout_steps(empty_lab, job)
        return status.rollout.ready == count == len(policies) and None not in policies.values()

    return job.wait(f"{count} current rollouts", serve, 900)


def trains_on(job: Job, steps: int = 6) -> None:
    """The attempt that began first makes so many steps more."""
    status = job.wait_for_step(job.status().progress.step + steps, timeout=900)
    assert attempts(status) == (1, 0)


def test_a_rollout_that_is_added_generates_and_one_that_is_killed_comes_back(empty_lab: Lab, job: Job) -> None:
    empty_lab.kube.kubectl("scale", f"rljob/{NAME}", "--replicas=2")
    current(empty_lab, job, 2)
    old = job.uid(names.ROLE_ROLLOUT, 1)
    empty_lab.kube.kubectl("delete", "pod", names.pod(NAME, names.ROLE_ROLLOUT, 1), "--grace-period=0", "--force")
    trains_on(job)
    job.wait("another pod", lambda _: job.uid(names.ROLE_ROLLOUT, 1) not in ("", old), 600)
    current(empty_lab, job, 2)


def test_training_continues_while_the_node_of_a_rollout_has_no_power(
    empty_lab: Lab, job: Job, nodes: tuple[str, str]
) -> None:
    home, away = nodes
    assert job.pod(names.ROLE_ROLLOUT, 1)["spec"]["nodeName"] == away
    empty_lab.provider.stop_node(away, "power")
    trains_on(job)
    empty_lab.kube.kubectl("taint", "node", home, f"{FULL}-")
    wait_for(
        "its successor",
        lambda: [p for p in job.pods(names.ROLE_ROLLOUT) if p["spec"].get("nodeName") == home][1:],
        600,
        describe=job.describe,
    )
    current(empty_lab, job, 2)
    trains_on(job)


def test_a_rollout_less_is_no_failure_and_every_sample_was_trained_in_time(empty_lab: Lab, job: Job) -> None:
    empty_lab.kube.kubectl("scale", f"rljob/{NAME}", "--replicas=1")
    current(empty_lab, job, 1)
    trains_on(job)
    program = f"""
import json, pathlib
from safetensors import safe_open
for path in sorted(pathlib.Path("/data/runs/{NAME}/batches").glob("step_*.safetensors")):
    batch = safe_open(path, "np")
    samples = [[int(i) for i in pair] for pair in zip(batch.get_tensor("group"), batch.get_tensor("sample"))]
    policies = {{int(step) for step in batch.get_tensor("policy_steps")}} - {{-1}}
    print(json.dumps([json.loads(batch.metadata()["step"]), samples, min(policies), max(policies)]))
"""
    lines = [json.loads(line) for line in empty_lab.python(program).splitlines()]
    everything = [[group, sample] for group in range(16) for sample in range(16)]
    assert len(lines) > 20
    for step, samples, oldest, newest in lines:
        assert samples == everything
        assert step - 1 - STALENESS <= oldest <= newest <= step - 1
