"""Verbs that change a job: suspend, resume, restart. Each asks the operator, once, by an annotation that neither Git nor the spec owns."""

import secrets
from typing import Any, Literal

import click

from kubectl_rljob.cluster import ClusterClient
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import RESOURCE, Job
from kubectl_rljob.options import Session, job_name, verb
from kubectl_rljob.terminal import Terminal
from rljob_api import names
from rljob_api.protocol import Request

Action = Literal["suspend", "resume", "restart"]

_GITOPS = {
    "annotations": {"argocd.argoproj.io/tracking-id": "Argo CD"},
    "labels": {
        "argocd.argoproj.io/instance": "Argo CD",
        "kustomize.toolkit.fluxcd.io/name": "Flux",
        "helm.toolkit.fluxcd.io/name": "Flux",
    },
}
"""Marks of tools that put a changed spec back."""


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
    if job.wants_suspend and not job.status.asleep:
        word = "suspended" if job.status.suspended else "suspending"
        session.terminal.show(f"{RESOURCE}/{job.name} unchanged (already {word})")
        return
    send(cluster, session.terminal, job, "suspend")
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
    send(cluster, session.terminal, job, "resume", from_step)
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
        raise UserError(f"{job.title} has no running attempt (state: {job.status.state})", job.command("status"))
    send(cluster, session.terminal, job, "restart")
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


def send(cluster: ClusterClient, terminal: Terminal, job: Job, action: Action, from_step: int | None = None) -> None:
    """Write the request with a fresh nonce; warn when a GitOps tool owns the object."""
    if job.metadata.get("deletionTimestamp"):
        raise UserError(f"{job.title} is being deleted", f"kubectl get rljob {job.name} -n {job.namespace} -w")
    if job.other_controller:
        raise UserError(
            f"{job.title} is run by {job.other_controller} (spec.managedBy), which reads no requests: "
            "send them to the cluster in which its pods are",
            job.command("status"),
        )
    request = Request(job_uid=job.uid, nonce=secrets.token_hex(8), action=action, from_step=from_step)
    cluster.annotate(job, names.ANNOTATION_REQUEST, request.dump_json())
    if tool := gitops_owner(job.metadata):
        terminal.tell(_warning(tool, action))


def gitops_owner(metadata: dict[str, Any]) -> str | None:
    """The tool whose tracking mark the object carries."""
    marks = ((metadata.get(part) or {}, known) for part, known in _GITOPS.items())
    return next((tool for held, known in marks for mark, tool in known.items() if mark in held), None)


def _warning(tool: str, action: Action) -> str:
    """Why spec.suspend stays as it is, and where to change it for good."""
    value = "true" if action == "suspend" else "false"
    return (
        f"warning: {tool} owns this object, so spec.suspend was not edited (it would be put back). The request "
        f"holds until spec.suspend changes or you ask again; to make it permanent, set spec.suspend: {value} in Git."
    )
