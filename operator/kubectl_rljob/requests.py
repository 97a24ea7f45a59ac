"""Ask the operator for something, once: an annotation that neither Git nor the spec owns."""

import secrets
from typing import Any, Literal

from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError
from kubectl_rljob.job import Job
from kubectl_rljob.terminal import Terminal
from rljob_api import names
from rljob_api.request import Request

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


def send(cluster: Cluster, terminal: Terminal, job: Job, action: Action, from_step: int | None = None) -> None:
    """Write the request with a fresh nonce; warn when a GitOps tool owns the object."""
    if job.metadata.get("deletionTimestamp"):
        raise UserError(f"{job.title} is being deleted", f"kubectl get rljob {job.name} -n {job.namespace} -w")
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
