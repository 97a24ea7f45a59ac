"""A trainer that is lost comes back where the last complete checkpoint was, bit by bit."""

from e2e.conftest import Lab
from e2e.job import Job
from rljob_api import names

KILL_A_RANK = """
import os, pathlib, signal
processes = [p for p in pathlib.Path("/proc").iterdir() if p.name.isdecimal()]
(rank,) = [int(p.name) for p in processes if (p / "cmdline").read_bytes().startswith(b"python -m rljob_trainer.rank")]
os.kill(rank, signal.SIGKILL)
"""


def kill_a_rank(lab: Lab, job: Job, ordinal: int) -> None:
    lab.kube.execute(names.pod(job.name, names.ROLE_TRAINER, ordinal), "python", "-c", KILL_A_RANK)


def test_a_deleted_pod_and_a_killed_rank_cost_no_more_than_the_steps_since_the_last_checkpoint(
    lab: Lab, baseline: Job
) -> None:
    job = lab.start_replay("interrupted")
    job.wait_for_step(12)
    lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_TRAINER, 1), "--grace-period=1")
    job.wait("a second attempt at work", lambda s: s.attempt.number == 2 and s.progress.step > 12, 300)

    kill_a_rank(lab, job, 0)
    status = job.wait("a third attempt", lambda s: s.attempt.number == 3, 300)
    failure = status.last_failure
    assert failure is not None and failure.failure is not None
    assert (failure.attempt, failure.pod, failure.failure.exception) == (
        2,
        names.pod(job.name, names.ROLE_TRAINER, 0),
        "Signal 9 (SIGKILL)",
    )

    status = job.wait_for_state("Succeeded", timeout=400)
    assert (status.restarts.total, status.attempt and status.attempt.number) == (2, 3)
    assert lab.losses(job.name) == lab.losses(baseline.name)


def test_a_launcher_of_an_old_attempt_cannot_commit_a_checkpoint(lab: Lab, baseline: Job) -> None:
    program = """
from pathlib import Path
from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.store import FencedOut, Store
root = Path("/data/runs/fenced")
old, new = (Store(root, "uid", attempt, "model", Resume(policy="auto"), 3) for attempt in (1, 2))
try:
    old.begin(1)
except FencedOut as error:
    print("refused:", error)
"""
    assert lab.python(program).startswith("refused:")
