"""Pages about jobs as they are now: list, status, checkpoints, describe-failure."""

import click

from kubectl_rljob.options import job_name, output, verb
from kubectl_rljob.printers import data, failure, text
from kubectl_rljob.printers import status as status_page
from kubectl_rljob.session import Session


@verb("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="jobs of all namespaces")
@output
def list_(session: Session, all_namespaces: bool, output: str | None) -> None:
    """List jobs.

    State, step, metric, ready trainer pods, restarts and age of each.
    """
    cluster = session.cluster()
    found = cluster.jobs(all_namespaces)
    if output:
        items = [data.without_managed_fields(job.raw) for job in found]
        session.terminal.data(data.render({"apiVersion": "v1", "kind": "List", "items": items}, output))
        return
    if not found:
        where = "" if all_namespaces else f" in namespace {cluster.namespace}"
        session.terminal.tell(f"No rljobs found{where}.")
        return
    session.terminal.show(text.jobs(found, session.now, all_namespaces, session.terminal.width))
    if unreadable := next((job.unreadable for job in found if job.unreadable), None):
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
