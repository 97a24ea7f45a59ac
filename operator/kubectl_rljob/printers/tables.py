"""The screens of `list`, which has the columns of `kubectl get rljobs`, and of `checkpoints`."""

from collections.abc import Sequence
from datetime import datetime

from kubectl_rljob.job import Job
from kubectl_rljob.printers.text import age, table
from rljob_api.protocol import Checkpoint

JOBS = ("NAME", "STATE", "STEP", "METRIC", "READY", "RESTARTS", "AGE")
CHECKPOINTS = ("STEP", "ATTEMPT", "AGE", "LAYOUT", "RESHARDABLE", "PATH")


def jobs(found: Sequence[Job], now: datetime, with_namespace: bool, width: int) -> str:
    """One line per job; READY counts trainer pods."""
    rows = [(job.namespace, *_job(job, now)) for job in found]
    header = ("NAMESPACE", *JOBS)
    start = 0 if with_namespace else 1
    return table(header[start:], [row[start:] for row in rows], width)


def _job(job: Job, now: datetime) -> tuple[object, ...]:
    created = age(job.metadata["creationTimestamp"], now)
    if job.unreadable:
        return (job.name, "Unreadable", "", "", "", "", created)
    s = job.status
    return (job.name, s.state, s.progress.text, s.progress.metric, s.trainer.text, s.restarts.total, created)


def checkpoints(kept: Sequence[Checkpoint], now: datetime, width: int) -> str:
    """One line per complete checkpoint, oldest first."""
    rows = [(c.step, c.attempt, age(c.time, now), c.layout, "yes" if c.reshardable else "no", c.path) for c in kept]
    return table(CHECKPOINTS, rows, width)
