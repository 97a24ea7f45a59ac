"""What a job's pods may do, and under which standard they run."""

from pathlib import Path

from e2e.conftest import Lab
from e2e.intruder import as_pod, outcome, trials
from e2e.job import Job
from rljob_api import names


def test_a_pods_token_reads_its_control_and_its_gangs_reports_and_writes_its_own_report_only(
    lab: Lab, baseline: Job, tmp_path: Path
) -> None:
    job = lab.start_replay("watched")
    job.wait_for_state("Running")
    pod, peer = (names.pod(job.name, names.ROLE_TRAINER, i) for i in (0, 1))
    token = names.token(job.name, job.object()["metadata"]["uid"])
    intruder = as_pod(lab.kube, pod, tmp_path)
    for trial in trials(job.name, pod, peer, baseline.name, token):
        assert outcome(intruder, trial) == ("allowed" if trial.allowed else "403"), trial
    job.wait_for_state("Succeeded", timeout=600)


def test_trainers_and_rollouts_run_where_the_restricted_standard_is_enforced(baseline: Job) -> None:
    """As it was while this job ran."""
    assert baseline.status().outcome == "Succeeded"
