"""A trainer that is lost comes back where the last complete checkpoint was, bit by bit, and no other job sees anything of it."""

import signal

import pytest

from e2e.conftest import Lab
from e2e.job import Job, attempts
from e2e.kube import wait_for
from e2e.test_c_rollout_failure import SIGNAL_THE_ENGINE
from rljob_api import names

KILL_A_RANK = """
import json, os, pathlib, signal, sys, time
attempt, step = sys.argv[1:]
progress = pathlib.Path(os.environ["RLJOB_WORK"], f"attempt-{attempt}", "progress.json")
deadline = time.monotonic() + 600
while not progress.exists() or json.loads(progress.read_text())["step"] < int(step):
    assert time.monotonic() < deadline, "the step did not come"
    time.sleep(0.02)
def command(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
processes = [p for p in pathlib.Path("/proc").iterdir() if p.name.isdecimal()]
(rank,) = [int(p.name) for p in processes if command(p).startswith(b"python -m rljob_trainer.rank.main")]
os.kill(rank, signal.SIGKILL)
"""


def kill_rank_0(lab: Lab, job: Job, attempt: int, step: int) -> None:
    """With SIGKILL, as soon as that attempt has done that step."""
    pod = names.pod(job.name, names.ROLE_TRAINER, 0)
    wait_for(pod, lambda: lab.kube.exists("pod", pod), 300)
    lab.kube.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=300s", timeout=330)
    lab.kube.execute(pod, "python", "-c", KILL_A_RANK, str(attempt), str(step), timeout=660)


def test_a_deleted_pod_and_a_killed_rank_cost_no_more_than_the_steps_since_the_last_checkpoint(
    lab: Lab, baseline: Job
) -> None:
    """And another job, which trains at the same time, sees nothing of it."""
    job, twin = lab.start_replay("interrupted"), lab.start_replay("twin")
    job.wait_for_step(12)
    lab.kube.kubectl("delete", "pod", names.pod(job.name, names.ROLE_TRAINER, 1), "--grace-period=1")
    job.wait("a second attempt", lambda s: attempts(s)[0] == 2, 300)

    kill_rank_0(lab, job, attempt=2, step=35)
    status = job.wait("a third attempt", lambda s: attempts(s)[0] == 3, 300)
    failure = status.last_failure
    assert failure is not None and failure.failure is not None
    assert (failure.attempt, failure.pod, failure.failure.exception) == (
        2,
        names.pod(job.name, names.ROLE_TRAINER, 0),
        "Signal 9 (SIGKILL)",
    )

    status = job.wait_for_state("Succeeded", timeout=400)
    assert attempts(status) == (3, 2)
    assert twin.wait_for_state("Succeeded", timeout=400).restarts.total == 0
    assert lab.losses(job.name) == lab.losses(twin.name) == lab.losses(baseline.name)


def test_a_launcher_of_an_old_attempt_cannot_commit_a_checkpoint(lab: Lab, baseline: Job) -> None:
    program = """
from pathlib import Path
from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.store import FencedOut, Run, Store
run = dict(job_uid="uid", model="model", resume=Resume(policy="auto"), resume_from=None, keep_last=3)
old, new = (Store(Path("/data/runs/fenced"), Run(attempt=attempt, **run)) for attempt in (1, 2))
try:
    old.begin(1)
except FencedOut as error:
    print("refused:", error)
"""
    assert lab.python(program).startswith("refused:")


@pytest.mark.extra
def test_a_colocated_server_whose_engine_is_killed_is_named_as_the_cause_and_the_next_attempt_resumes(
    empty_lab: Lab,
) -> None:
    """vLLM's API server lives on for a while and refuses what ranks ask; that is not the cause."""
    job = empty_lab.start_untrained(
        "engine",
        train={"steps": 100_000},
        trainer={"nodes": 1, "parallelism": {"tensor": 1}, "template": {"resources": {"limits": {"memory": "7Gi"}}}},
        rollout={"placement": "colocated", "replicas": 1, "template": None},
        checkpoint={"path": "/data/runs/engine", "everySteps": 2},
    )
    job.wait_for_step(5, timeout=900)
    pod = names.pod(job.name, names.ROLE_TRAINER, 0)
    empty_lab.kube.execute(pod, "python", "-c", SIGNAL_THE_ENGINE, str(int(signal.SIGKILL)))
    status = job.wait("a second attempt", lambda s: attempts(s)[0] == 2, 300)
    failure = status.last_failure
    assert failure is not None and failure.failure is not None
    assert (failure.attempt, failure.pod, failure.failure.exception) == (1, pod, "ServerLost")
    assert failure.failure.message.startswith("the server was killed: the engine")

    status = job.wait("more steps", lambda s: s.progress.attempt == 2 and s.progress.step > 6, 600)
    assert status.progress.started_from and status.progress.started_from >= 4
    job.delete()
