"""Verbs that change a job: suspend, resume, restart. Each writes a request into an annotation."""

import click

from kubectl_rljob import requests
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import RESOURCE, Job
from kubectl_rljob.options import job_name, verb
from kubectl_rljob.session import Session


@verb()
@job_name
def suspend(session: Session, name: str) -> None:
    """Suspend a job.

    It finishes its step, saves a checkpoint and frees its pods. Writes a request into an annotation;
    spec.suspend is not edited, so a GitOps tool does not undo it.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    if job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: there is nothing to suspend", job.command("status")
        )
    if job.wants_suspend:
        word = "suspended" if job.status.suspended else "suspending"
        session.terminal.show(f"{RESOURCE}/{job.name} unchanged (already {word})")
        return
    requests.send(cluster, session.terminal, job, "suspend")
    session.terminal.show(f"{RESOURCE}/{job.name} suspend requested")


@verb()
@job_name
@click.option(
    "--from-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="step of a complete checkpoint (see `kubectl rljob checkpoints`); 0: start over from the initial weights",
)
def resume(session: Session, name: str, from_step: int | None) -> None:
    """Resume a job.

    With --from-step it continues from one of its complete checkpoints, or starts over. --from-step also opens a
    job again that has succeeded or failed. Checkpoints of later steps leave the lineage. Writes a request into
    an annotation; spec.suspend is not edited, so a GitOps tool does not undo it.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    if from_step is not None:
        check_step(job, from_step)
    elif job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: it resumes only from a given step. {available(job)}",
            job.command("resume", "--from-step N"),
        )
    elif not job.wants_suspend:
        session.terminal.show(f"{RESOURCE}/{job.name} unchanged (not suspended)")
        return
    requests.send(cluster, session.terminal, job, "resume", from_step)
    where = "" if from_step is None else f" from step {from_step}"
    session.terminal.show(f"{RESOURCE}/{job.name} resume requested{where}")


@verb()
@job_name
def restart(session: Session, name: str) -> None:
    """Restart a job's gang.

    It finishes its step, saves, and continues as the next attempt, with the image and spec of now. Not counted
    against spec.lifecycle.maxRestarts. Writes a request into an annotation.
    """
    cluster = session.cluster()
    job = cluster.job(name)
    attempt = job.status.attempt
    if job.status.outcome:
        raise UserError(
            f"{job.title} has {job.status.outcome.lower()}: it resumes only from a given step",
            job.command("resume", "--from-step N"),
        )
    if attempt is None or attempt.ended_at:
        raise UserError(f"{job.title} has no attempt that runs (state: {job.status.state})", job.command("status"))
    requests.send(cluster, session.terminal, job, "restart")
    session.terminal.show(f"{RESOURCE}/{job.name} restart requested")


def check_step(job: Job, step: int) -> None:
    """Complete checkpoints that are kept can be continued from, and the initial weights, which are step 0."""
    if step and step not in {c.step for c in job.status.checkpoint.kept}:
        raise UserError(
            f"--from-step: {job.title} has no complete checkpoint of step {step}. {available(job)}",
            job.command("checkpoints"),
        )


def available(job: Job) -> str:
    steps = [str(c.step) for c in job.status.checkpoint.kept]
    kept = f"Available steps: {', '.join(steps)}" if steps else "It has no complete checkpoints"
    return f"{kept}; step 0 starts over from the initial weights."
