"""The screen of `list`: the columns of `kubectl get rljobs`."""

from collections.abc import Sequence
from datetime import datetime

from kubectl_rljob.job import Job
from kubectl_rljob.printers.text import age, table

HEADER = ("NAME", "STATE", "STEP", "REWARD", "READY", "RESTARTS", "AGE")


def screen(jobs: Sequence[Job], now: datetime, with_namespace: bool) -> str:
    """One line per job; READY counts trainer pods."""
    rows = [(job.namespace, *_row(job, now)) for job in jobs]
    header = ("NAMESPACE", *HEADER)
    return table(header, rows) if with_namespace else table(header[1:], [row[1:] for row in rows])


def _row(job: Job, now: datetime) -> tuple[object, ...]:
    s = job.status
    return (
        job.name,
        s.state,
        s.progress.text,
        s.progress.reward,
        s.trainer.text,
        s.restarts.total,
        age(job.metadata["creationTimestamp"], now),
    )
