"""Pages about jobs as they are now: list, status, checkpoints, describe-failure. And `watch`, which follows one job."""

import math
import time
from collections.abc import Callable
from datetime import datetime, timezone

import click

from kubectl_rljob import errors
from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import ENDED, Job
from kubectl_rljob.options import Session, job_name, output, verb
from kubectl_rljob.printers import data, failure, text
from kubectl_rljob.printers import status as status_page
from kubectl_rljob.printers.text import clip
from kubectl_rljob.terminal import Terminal


@verb("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="jobs of all namespaces")
@output
def list_(session: Session, all_namespaces: bool, output: str | None) -> None:
    """List jobs.

    State, step, metric, ready trainer pods, restarts and age of each.
    """
    cluster = session.cluster()
    jobs = cluster.jobs(all_namespaces)
    if output:
        items = [data.without_managed_fields(job.raw) for job in jobs]
        session.terminal.data(data.render({"apiVersion": "v1", "kind": "List", "items": items}, output))
        return
    if not jobs:
        where = "" if all_namespaces else f" in namespace {cluster.namespace}"
        session.terminal.tell(f"No rljobs found{where}.")
        return
    session.terminal.show(text.jobs(jobs, session.now, all_namespaces, session.terminal.width))
    unreadable = next((job.unreadable for job in jobs if job.unreadable), None)
    if unreadable:
        raise unreadable


@verb()
@job_name
@output
def status(session: Session, name: str, output: str | None) -> None:
    """Show one job on one page.

    State, roles, metrics, checkpoints, the last failure with its root cause, and the last events.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    if output:
        session.terminal.data(data.render(data.without_managed_fields(job.raw), output))
    else:
        session.terminal.show(status_page.page(job, cluster.events(job), session.now, session.terminal.width))


@verb()
@job_name
@output
def checkpoints(session: Session, name: str, output: str | None) -> None:
    """List the complete checkpoints of a job.

    Those that are kept, oldest first.
    """
    job = session.job(name)
    kept = job.status.checkpoint.kept
    if output:
        session.terminal.data(data.render([c.dump() for c in kept], output))
    elif kept:
        session.terminal.show(text.checkpoints(kept, session.now, session.terminal.width))
    else:
        session.terminal.tell(f"No complete checkpoints of {job.title} yet.")


@verb("describe-failure")
@job_name
@output
def describe_failure(session: Session, name: str, output: str | None) -> None:
    """Explain a job's last failure.

    Root cause with its traceback, what it cost, where the logs are, what to do next.
    """
    job = session.job(name)
    last = job.status.last_failure
    if output:
        session.terminal.data(data.render(last.dump() if last else {}, output))
    elif last is None:
        session.terminal.show(f"{job.title} has not failed (state: {job.status.state})")
    else:
        session.terminal.show(failure.screen(job, last, session.now, session.here))


LONGEST = 3600
PATIENCE_SECONDS = 300.0
"""How long an API server may be unreachable before the watch ends with its error."""


def _finite(_: click.Context, parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter("must be a number", param=parameter)
    return value


@verb()
@job_name
@click.option(
    "--interval",
    type=click.FloatRange(0, LONGEST, min_open=True),
    callback=_finite,
    default=2.0,
    metavar="SECONDS",
    help="time between polls (default: 2)",
)
def watch(session: Session, name: str, interval: float) -> None:
    """Follow one job until it ends.

    On a terminal its status page is redrawn as it changes; elsewhere each change prints a line. Outages of the API
    server of less than five minutes are waited out. Exit code 3 when the job has failed, 1 when the API server stays
    unreachable.
    """
    cluster = session.cluster()
    with session.terminal.redrawing() as redraw:
        look = Look(session.terminal, redraw)
        while True:
            job = look.patiently(cluster, name, interval)
            if job.status.state in ENDED and not resuming(job):
                break
            time.sleep(interval)
    if job.status.state == "Failed":
        raise click.exceptions.Exit(errors.JOB_FAILED)


def resuming(job: Job) -> bool:
    """Whether a request to resume it waits for the operator: what has ended is about to run again."""
    request = job.pending_request
    return request is not None and request.action == "resume"


class Look:
    """Shows what has changed since the last look."""

    def __init__(self, terminal: Terminal, redraw: Callable[[str], None] | None) -> None:
        """`redraw` replaces the page on a terminal; elsewhere there is none."""
        self._terminal, self._redraw = terminal, redraw
        self._shown, self._warned = "", False

    def patiently(self, cluster: ClusterClient, name: str, interval: float) -> Job:
        """Show the job, once the API server answers. Raises UserError for a refusal, and when it has been away too long."""
        since, self._warned = time.monotonic(), False
        while True:
            try:
                return self._once(cluster, cluster.job(name))
            except UserError as error:
                if not error.transient or time.monotonic() - since > PATIENCE_SECONDS:
                    raise
                self._warn(f"warning: {error}; trying again")
                time.sleep(interval)

    def _once(self, cluster: ClusterClient, job: Job) -> Job:
        if self._redraw:
            now, terminal = datetime.now(timezone.utc), self._terminal
            self._shown = status_page.page(job, cluster.events(job), now, terminal.width, terminal.height)
            self._redraw(self._shown)
        elif (text := line(job)) != self._shown:
            self._terminal.show(text)
            self._terminal.flush()
            self._shown = text
        return job

    def _warn(self, text: str) -> None:
        """Once for each time that the server is away."""
        if self._redraw:
            self._redraw(f"{self._shown}\n\n{text}")
        elif not self._warned:
            self._terminal.tell(text)
        self._warned = True


def line(job: Job) -> str:
    """Without times, so that it changes only with the job."""
    s, p = job.status, job.status.progress
    parts = (s.state, p.text, p.metric, p.phase if s.state == "Running" else "", s.message.split("\n")[0])
    return "   ".join(clip(part) for part in parts if part)
