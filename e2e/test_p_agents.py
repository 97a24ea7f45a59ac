"""The calculator's agent on the cluster: it learns to call its tool, and the trajectories of an agent's process that is killed are counted."""

import pytest

from e2e.conftest import Lab
from e2e.job import EXAMPLES, Job
from e2e.kube import wait_for
from e2e.prepare import run_preparation
from rljob_api import names

pytestmark = pytest.mark.extra

STEPS = 20
KILL_ONE_AT_WORK = """
import psutil
agents = [p for p in psutil.process_iter() if "rljob_trainer.agents.worker" in p.cmdline()]
while not (busy := [p for p in agents if p.cpu_percent(0.2) > 0]):
    pass
busy[0].kill()
"""


@pytest.fixture(scope="module")
def job(empty_lab: Lab) -> Job:
    """As its README says."""
    empty_lab.kube.kubectl("create", "configmap", "calculator", f"--from-file={EXAMPLES / 'calculator'}")
    run_preparation(empty_lab.kube, empty_lab.provider, "calculator")
    return empty_lab.start("calculator", of="calculator", train={"steps": STEPS}, evaluation={"everySteps": STEPS})


def kill_until_counted(empty_lab: Lab, job: Job) -> bool:
    """Kill one of the agent's processes. One whose last trajectories had just ended costs nothing, and then another is killed."""
    empty_lab.kube.execute(names.pod(job.name, names.ROLE_TRAINER, 0), "python", "-c", KILL_ONE_AT_WORK)
    step = job.status().progress.step
    job.wait("two more steps", lambda s: s.progress.step >= min(step + 2, STEPS), 600)
    return any(empty_lab.series(job.name, "agent/failed_raised").values())


def test_trajectories_of_a_killed_process_are_counted_and_the_job_learns_on(empty_lab: Lab, job: Job) -> None:
    job.wait_for_step(2, timeout=900)
    wait_for("trajectories that failed", lambda: kill_until_counted(empty_lab, job), 1200)
    status = job.wait_for_state("Succeeded", timeout=1800)
    assert status.attempt is not None and (status.attempt.number, status.restarts.total) == (1, 0)
    failed, raised = (empty_lab.series(job.name, f"agent/{name}") for name in ("failed", "failed_raised"))
    assert failed == raised, "for no other reason"
    assert status.progress.evaluation["last"] > status.progress.evaluation["first"] + 0.3
    assert empty_lab.series(job.name, "agent/turns")[STEPS] > 2


def test_samples_say_what_the_agent_wrote(empty_lab: Lab, job: Job) -> None:
    job.wait_for_state("Succeeded", timeout=900)
    printed = empty_lab.kube.plugin("samples", job.name, "--count", "16")
    assert f"STEP {STEPS}" in printed and "environment" in printed and "add(" in printed
